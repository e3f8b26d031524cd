"""Rounds over real sites: on loopback, over a slow line, and with many sites; skipped without NVIDIA FLARE."""

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import foedus as fd
from foedus.federation.flare.trial import Federation
from foedus.federation.order import order_of
from foedus.runtime.spine import HistorySoFar, Watch
from foedus_lab.benchmarks.harness import Measurement
from foedus_lab.benchmarks.slow_line import LineApart

DIM = 100  # of the model; small, so that a message costs its overhead
WARM_UP = 10  # rounds that are not counted
LIMITS = {(3, "aux"): 0.04, (3, "task"): 0.1, (10, "aux"): 0.12, (30, "aux"): 0.2}  # median seconds of a round
MANY = (3, 10, 20, 30)  # sites on this machine
DELAYS = (0.0, 0.02, 0.1)  # seconds one way
TRIPS = 1.2  # of the line that a round may take, at the most, where the line is what takes time
SERVER = 0.005  # seconds of the server's processor a site and round, at the most
OVERHEAD = 1500  # bytes of a message beyond its numbers, at the most


def little(sites: int) -> fd.Problem:
    """Return a problem with so little work at each site that a round costs what its messages cost."""
    rng = np.random.default_rng(0)
    return fd.Problem(
        [(rng.standard_normal((4, DIM)), rng.standard_normal(4)) for _ in range(sites)], loss=fd.losses.least_squares
    )


ALGORITHM = fd.LocalSGD(k0=1, batch=1, lr=1e-3)


class Meter:
    """Samples of something while a run goes on: with how many rounds played it had which value."""

    def __init__(self, value: Callable[[], float]):
        self.value = value
        self.samples: list[tuple[int, float]] = []

    def __call__(self, history: HistorySoFar) -> None:
        if history.rounds >= WARM_UP:
            self.samples.append((history.rounds, self.value()))

    @property
    def per_round(self) -> float:
        """How much of it a round takes; NaN where there are too few samples."""
        if len(self.samples) < 2:
            return float("nan")
        (first, start), (last, end) = self.samples[0], self.samples[-1]
        return (end - start) / max(1, last - first)


def play(federation: Federation, transport: str, count: int, watch: Watch | None = None) -> np.ndarray:
    """Play rounds with nothing to compute; return the seconds of each after the first ones, in order of size."""
    sites = len(federation.sites)
    problem = little(sites).over(np.zeros(DIM))
    order = order_of(
        problem, ALGORITHM, np.zeros(DIM), run=f"bench-{transport}", sites=federation.sites, seed=0,
        max_rounds=count, participation=fd.Fraction(),
    )  # fmt: skip
    runtime = fd.Flare(at=federation.folder, transport=transport)

    def during_rounds(history: HistorySoFar) -> None:
        if watch is not None and history.rounds < count:  # after the last round comes the measurement
            watch(history)

    return np.sort(runtime.run(federation, order, problem, during_rounds).pace[WARM_UP:])


def processor(federation: Federation, party: str) -> float:
    """Return the processor time that a party's processes have taken, in seconds."""
    import psutil

    total = 0.0
    for pid in federation.processes(party):
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def rounds(quick: bool) -> list[Measurement]:
    """Measure the median round after a warm-up: both transports, a slow line, and many sites."""
    if find_spec("nvflare") is None:
        return []
    count = 60 if quick else 200
    lines = [line for sites in (MANY[:1] if quick else MANY) for line in _many(sites, count)]
    lines += [_far(delay, count) for delay in (DELAYS[1:2] if quick else DELAYS)]
    problem = little(3).over(np.zeros(DIM))
    run = fd.solve(problem, ALGORITHM, max_rounds=2000)
    lines.append(Measurement("the simulator's, 3 clients", (run.seconds - run.compile_seconds) / run.rounds))
    return lines


def _many(sites: int, count: int) -> list[Measurement]:
    """A round over so many sites on this machine, and the server's processor a site and round."""
    lines = []
    with tempfile.TemporaryDirectory(prefix="foedus-") as folder:
        federation = Federation.up(Path(folder), sites)
        try:
            for transport in ("aux", "task") if sites == MANY[0] else ("aux",):
                meter = Meter(lambda: processor(federation, "server"))
                pace = play(federation, transport, count, meter)
                limit = LIMITS.get((sites, transport))
                name = f"a round over {sites} real sites, {transport}"
                line = Measurement(name, float(np.median(pace)), "a second", 1.0, limit=limit)
                line.extra["nine in ten within"] = f"{pace[int(0.9 * len(pace))]:.3g} s"
                lines.append(line)
                if transport == "aux":
                    work = meter.per_round / sites
                    limit = SERVER if sites == MANY[-1] else None
                    name = f"the server's processor a site, {sites} sites"
                    lines.append(Measurement(name, work, "a second", 1.0, limit=limit))
        finally:
            federation.down()
    return lines


def _far(delay: float, count: int) -> Measurement:
    """A round over three sites at the far end of a line with this delay, and what its messages add to their numbers."""
    slow: list[LineApart] = []

    def line(port: int) -> int:
        slow.append(LineApart(port, delay))
        return slow[0].port

    with tempfile.TemporaryDirectory(prefix="foedus-") as folder:
        federation = Federation.up(Path(folder), 3, line=line)
        try:
            up, down = Meter(lambda: float(slow[0].up)), Meter(lambda: float(slow[0].down))

            def watch(history: HistorySoFar) -> None:
                up(history)
                down(history)

            pace = play(federation, "aux", count, watch)
        finally:
            federation.down()
            for one in slow:
                one.close()
    trip = 2 * delay
    name = f"a round, {1000 * delay:.0f} ms one way, 3 sites"
    result = Measurement(name, float(np.median(pace)), "a round trip" if trip else "", trip)
    result.limit = TRIPS if trip else None
    numbers = 8 * (DIM + 1)
    result.extra["bytes beyond the numbers of a message"] = (
        f"{up.per_round / 3 - numbers:.0f} up, {down.per_round / 3 - numbers - 16:.0f} down"
    )
    return result
