"""The benchmarks by name, and the table that `foedus bench` prints."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from foedus.base.errors import FoedusError, did_you_mean
from foedus_lab.benchmarks import (
    constrained,
    courier,
    fairness,
    federation,
    files,
    newton,
    page,
    private,
    robust,
    rounds,
    scale,
    secure,
    speed,
    startup,
)
from foedus_lab.benchmarks.harness import Measurement, machine


@dataclass(frozen=True)
class Part:
    """A part of the benchmarks: what it measures in words, how, and the packages whose versions its page names."""

    title: str
    measure: Callable[[bool], list[Measurement]]
    peers: tuple[str, ...] = ()


PARTS: dict[str, Part] = {
    "gradients": Part("gradients of all clients against two passes over the same bytes", speed.gradients),
    "round": Part(
        "a FedAvg round against NumPy and other frameworks",
        speed.fedavg_round,
        ("fedjax", "flwr", "ray", "pfl", "torch"),
    ),
    "fedgia": Part("a FedGiA solve against NumPy gradients of all clients", speed.fedgia_solve),
    "scale": Part("seconds per round and per client, by the number of clients", scale.clients),
    "startup": Part("processor time to a first answer, with a cold and a warm cache", startup.startup),
    "private": Part(
        "ENS, local work, what clipping and noise cost, DP-SGD and diffprivlib",
        private.private,
        ("diffprivlib", "scikit-learn", "dp-accounting"),
    ),
    "constrained": Part(
        "rounds, bytes and time to a certificate", constrained.certificate, ("scipy", "cvxpy", "clarabel")
    ),
    "interior": Part("rounds of InteriorPoint on the papers' constrained problems", rounds.interior),
    "newton": Part("unconstrained rounds and bytes beside u-FedNL's", newton.newton),
    "robust": Part(
        "the robust step, its constants, and peers of the pooled case",
        robust.steps,
        ("cvxpy", "clarabel", "dro", "skwdro", "torch"),
    ),
    "drfl": Part("rounds of DRFL to a duality gap, beside CVXPY's optimum", rounds.drfl, ("cvxpy", "clarabel")),
    "fairness": Part(
        "a gap of errors between groups on Adult, against fairlearn", fairness.errors, ("fairlearn", "scikit-learn")
    ),
    "files": Part(
        "foedus run on large files against pandas and scikit-learn, fresh processes",
        files.large,
        ("pandas", "scikit-learn"),
    ),
    "federation": Part("a round over real sites on loopback", federation.rounds, ("nvflare",)),
    "courier": Part(
        "exchanges and bytes of runs by courier, beside requests over a network", courier.exchanges, ("cryptography",)
    ),
    "secure": Part(
        "masked sums, and a round with them over real sites on loopback", secure.secure, ("nvflare", "cryptography")
    ),
}
"""The parts by name."""


def run(
    only: str | None = None, quick: bool = False, echo: Callable[[str], None] = print, write: Path | None = None
) -> list[Measurement]:
    """Run the benchmarks, or the one called `only`, print them as tables and return their lines.

    With `write`, a Markdown page, the figures of each part replace those that an earlier run wrote there.
    """
    if only is not None and only not in PARTS:
        raise FoedusError(f"no benchmark is called {only!r}; there are {', '.join(PARTS)}.{did_you_mean(only, PARTS)}")
    if write is not None:
        page.check(write)
    lines: list[Measurement] = []
    for name, part in PARTS.items():
        if only not in (None, name):
            continue
        echo(f"\n{name}: {part.title} ({machine()})")
        try:
            measurements = part.measure(quick)
        except FoedusError as error:  # without its data or packages; the other parts are measured all the same
            if only is not None:
                raise
            echo(f"  left out: {error}")
            continue
        for line in measurements:
            against = f"  {line.ratio:8.3g} x {line.against} ({line.reference:.3g} s)" if line.reference else ""
            extra = "  " + ", ".join(f"{k} {v}" for k, v in line.extra.items()) if line.extra else ""
            seconds = "" if math.isnan(line.seconds) else f" {line.seconds:10.3g} s"
            echo(f"  {line.what:44s}{seconds}{against}  {line.verdict}{extra}".rstrip())
        lines += measurements
        if not measurements:
            echo("  left out: nothing could be measured here; this part needs packages that are not installed")
        elif write is not None:
            command = f"foedus bench --only {name}{' --quick' if quick else ''}"
            page.write(write, name, part.title, measurements, command, part.peers)
            echo(f"  written: {write}")
    return lines
