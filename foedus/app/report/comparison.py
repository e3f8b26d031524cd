"""Several runs on one problem side by side: a table for the terminal, and a picture of their convergence."""

import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from foedus.base.errors import FoedusError
from foedus.base.files import write_whole
from foedus.base.quantities import duration, size
from foedus.runtime.run import Run

SMALLEST_GAP = 1e-16  # a smaller difference of two objectives is a rounding error


@dataclass(frozen=True)
class Entry:
    """A run, and ‖∇f‖² measured over all clients at the model it returned."""

    run: Run
    squared_gradient: float


def table(entries: Mapping[str, Entry]) -> Table:
    """Return a table with one row for each run: its final figures, and its rounds, bytes and seconds."""
    compiling = sum(entry.run.compile_seconds for entry in entries.values())
    grid = Table(caption=f"objective and ‖∇f‖² over all clients; time without compiling ({duration(compiling)})")
    grid.add_column("algorithm")
    for title in ("objective", "‖∇f‖²", "rounds", "up", "down", "time"):
        grid.add_column(title, justify="right")
    for name, entry in entries.items():
        run = entry.run
        grid.add_row(
            name,
            f"{run.objective:.6f}",
            f"{entry.squared_gradient:.1e}",
            f"{run.rounds}",
            size(run.traffic.up),
            size(run.traffic.down),
            duration(run.seconds - run.compile_seconds),
        )
    return grid


def gaps(run: Run, optimum: float) -> np.ndarray | None:
    """Return f − optimum at the model of each round, shape (rounds,), or None if the run has no record of f."""
    if "objective" not in run.history:
        return None
    return np.maximum(run.history["objective"] - optimum, SMALLEST_GAP)


def standing(runs: Mapping[str, Run], optimum: float) -> str:
    """Say how far above the optimum each run ended, best first, and until which round it was ahead of the best."""
    order = sorted(runs, key=lambda name: runs[name].objective)
    best = gaps(runs[order[0]], optimum)
    words = []
    for name in order:
        remark = f"{name} by {max(runs[name].objective - optimum, 0.0):.1e}"
        mine = gaps(runs[name], optimum)
        if name != order[0] and best is not None and mine is not None:
            common = min(len(best), len(mine))
            lead = np.flatnonzero(mine[:common] < best[:common])
            if len(lead) and lead[-1] + 1 < common:  # overtaken while both were running
                remark += f" (ahead until round {lead[-1] + 1})"
        words.append(remark)
    return ", ".join(words)


def drawable() -> bool:
    """Whether matplotlib is installed, which draws the pictures."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(runs: Mapping[str, Run], optimum: float, path: Path, *, title: str = "") -> Sequence[str]:
    """Draw the gap to the optimum against rounds and against bytes into a PNG or SVG file; return the names drawn."""
    if not drawable():
        raise FoedusError("a picture needs matplotlib; install it with: pip install 'foedus[plot]'.")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    curves = {name: gap for name, run in runs.items() if (gap := gaps(run, optimum)) is not None}
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_rounds, by_bytes = figure.subplots(1, 2, sharey=True)
    for name, gap in curves.items():
        history = runs[name].history
        kilobytes = np.cumsum(history["bytes_up"] + history["bytes_down"]) / 1e3
        (line,) = by_rounds.semilogy(np.arange(1, len(gap) + 1), gap, label=name)
        by_bytes.semilogy(kilobytes, gap, label=name, color=line.get_color())
        if runs[name].converged:
            by_rounds.semilogy(len(gap), gap[-1], "o", color=line.get_color())
            by_bytes.semilogy(kilobytes[-1], gap[-1], "o", color=line.get_color())
    by_rounds.set(xlabel="round", ylabel="objective − optimum")
    by_bytes.set(xlabel="kB sent, up and down, all clients")
    for axes in (by_rounds, by_bytes):
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
    if any(runs[name].converged for name in curves):
        by_rounds.plot([], [], "o", color="grey", label="passed its stopping test")
    if curves:
        by_rounds.legend()
    figure.suptitle(title)
    buffer = io.BytesIO()
    kind = path.suffix[1:] or "png"
    # no date and no random identifiers, so that the same runs give the same bytes
    with rc_context({"svg.hashsalt": "foedus"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_whole(path, buffer.getvalue())
    return tuple(curves)
