"""The benchmarks by name, and the table that `foedus bench` prints."""

from collections.abc import Callable
from pathlib import Path

from foedus.benchmarks import (
    constrained,
    fairness,
    federation,
    files,
    newton,
    page,
    private,
    robust,
    scale,
    secure,
    speed,
    startup,
)
from foedus.benchmarks.harness import Measurement, machine
from foedus.errors import FoedusError, did_you_mean


def run(
    only: str | None = None, quick: bool = False, echo: Callable[[str], None] = print, write: Path | None = None
) -> list[Measurement]:
    """Run the benchmarks, or the one called `only`, print them as tables and return their lines.

    With `write`, a Markdown page, the figures of each part replace those that an earlier run wrote there.
    """
    parts: dict[str, tuple[str, Callable[[bool], list[Measurement]]]] = {
        "gradients": ("gradients of all clients against two passes over the same bytes", speed.gradients),
        "round": ("a FedAvg round against NumPy and other frameworks", speed.fedavg_round),
        "fedgia": ("a FedGiA solve against NumPy gradients of all clients", speed.fedgia_solve),
        "scale": ("seconds per round and per client, by the number of clients", scale.clients),
        "startup": ("processor time to a first answer, with a cold and a warm cache", startup.startup),
        "private": ("ENS, local work, and what clipping and noise cost", private.private),
        "constrained": ("rounds, bytes and time to a certificate", constrained.certificate),
        "newton": ("unconstrained rounds and bytes beside u-FedNL's", newton.newton),
        "robust": ("the robust step, its constants, and peers of the pooled case", robust.steps),
        "fairness": ("a gap of errors between groups on Adult, against fairlearn", fairness.errors),
        "files": ("foedus run on large files against pandas and scikit-learn, fresh processes", files.large),
        "federation": ("a round over real sites on loopback", federation.rounds),
        "secure": ("masked sums, and a round with them over real sites on loopback", secure.secure),
    }
    if only is not None and only not in parts:
        raise FoedusError(f"no benchmark is called {only!r}; there are {', '.join(parts)}.{did_you_mean(only, parts)}")
    if write is not None:
        page.check(write)
    lines: list[Measurement] = []
    for name, (title, measure) in parts.items():
        if only not in (None, name):
            continue
        echo(f"\n{name}: {title} ({machine()})")
        measurements = measure(quick)
        for line in measurements:
            against = f"  {line.ratio:8.3g} x {line.against} ({line.reference:.3g} s)" if line.reference else ""
            extra = "  " + ", ".join(f"{k} {v}" for k, v in line.extra.items()) if line.extra else ""
            echo(f"  {line.what:44s} {line.seconds:10.3g} s{against}  {line.verdict}{extra}".rstrip())
        lines += measurements
        if write is not None:
            page.write(write, name, title, measurements, f"foedus bench --only {name}{' --quick' if quick else ''}")
            echo(f"  written: {write}")
    return lines
