"""Several runs in one table: what each reached, and what that took."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from foedus.experiment.screen import size, span
from foedus.run import Run


def epsilon(run: Run) -> float | None:
    """The largest privacy loss of a site, where the run has a ledger with a guarantee."""
    ledger = getattr(run, "ledger", None)
    if ledger is None or not getattr(ledger, "sound", False):
        return None
    return max(float(ledger.total(name)) for name in run.names)


def worst(run: Run) -> str:
    """The constraint row that is closest to, or furthest beyond, its limit."""
    rows = run.certificate.rows
    if not rows:
        return "none set"
    row = min(rows, key=lambda r: r.slack)
    held = "over by" if row.violation > run.certificate.eps2 else "within" if row.slack > 0 else "at"
    return (
        f"{row.value:.4g} of {row.cap:.4g} at {row.site} ({held} {abs(row.slack):.1g})"
        if held != "at"
        else (f"{row.value:.4g} of {row.cap:.4g} at {row.site} (at the limit)")
    )


def table(runs: Mapping[str, Run]) -> Table:
    """One row a run."""
    spent = {name: epsilon(run) for name, run in runs.items()}
    titles = ["run", "method", "objective", "worst constraint", "stationarity", "rounds", "up", "down", "time"]
    titles += ["epsilon"] if any(value is not None for value in spent.values()) else []
    made = Table(caption=caption(runs), caption_justify="left")
    for title in titles:
        left = title in ("run", "method", "worst constraint")
        made.add_column(title, justify="left" if left else "right", overflow="fold")
    for name, run in runs.items():
        cells = [
            name,
            str(run.settings["algorithm"]["name"]),
            f"{run.objective:.6g}",
            worst(run),
            f"{run.certificate.stationarity:.1e}",
            f"{run.rounds}{'' if run.converged else ' (limit)'}",
            size(run.traffic.up),
            size(run.traffic.down),
            span_short(run.seconds - run.compile_seconds),
        ]
        value = spent[name]
        made.add_row(*cells, *([] if len(titles) == len(cells) else ["none" if value is None else f"{value:.3g}"]))
    return made


def span_short(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else span(seconds)


def caption(runs: Mapping[str, Run]) -> str:
    """How the figures were measured, and a warning where they are of different problems."""
    said = (
        "Objective and stationarity (0 at an optimum) are measured over all sites at the returned model; time is "
        "without compiling."
    )
    if len({problem_of(run) for run in runs.values()}) > 1:
        said += " These runs solve different problems, so their objectives do not compare."
    return said


def problem_of(run: Run) -> str:
    """What a run's problem is, as far as its settings tell."""
    stated: dict[str, Any] = run.settings["problem"]
    return repr((sorted(stated.items(), key=lambda item: item[0]), run.names))


def summary(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "run": name,
            "algorithm": run.settings["algorithm"]["name"],
            "objective": run.objective,
            "worst_slack": min((row.slack for row in run.certificate.rows), default=None),
            "stationarity": run.certificate.stationarity,
            "certified": run.certificate.holds(),
            "converged": run.converged,
            "rounds": run.rounds,
            "bytes_up": run.traffic.up,
            "bytes_down": run.traffic.down,
            "seconds": run.seconds - run.compile_seconds,
            "epsilon": epsilon(run),
        }
        for name, run in runs.items()
    ]
