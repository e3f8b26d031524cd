"""How cost grows with sites, columns, rows, constraints, heterogeneity and accuracy: what is measured.

One generated logistic problem is enlarged in one direction at a time. The simulator plays it, and real sites of NVIDIA
FLARE play rounds with nothing to compute. `growth_page.py` fits the laws and writes them down.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foedus import constraints, losses, penalties
from foedus.base.engine import relieve
from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import nbytes
from foedus.problem.problem import Problem
from foedus.protocol.participation import Fraction
from foedus.runtime.spine import prepare
from foedus_lab.study import reference
from foedus_lab.study.grid import first_hit
from foedus_lab.study.instances import RIDGE, Instance, logistic_instance
from foedus_lab.study.methods import Settings, make
from foedus_lab.study.play import Trace, trace
from foedus_lab.study.reference import Reference
from foedus_lab.study.rows import ACCURACIES, Results, tag
from foedus_lab.study.tables import Dials, Sample, draw_sites

FIELDS = ("law", "value", "algorithm")  # the key of a row
GOAL = 1e-6  # the gap at which rounds are compared
SEED = 0
LIMIT = 2000  # rounds of a run
WORK = 1.5e10  # numbers of data that a run reads, rounds times sites times rows times columns, at the most
TWICE = 3e6  # numbers of data up to which a problem is played twice: the first run warms the caches up
REAL = "real sites"  # the law that NVIDIA FLARE measures, on this machine
DENSE, LEARNT = "InteriorPoint, Hessians", "InteriorPoint, gradients"
VARIANTS: Mapping[str, tuple[str, Settings]] = {
    DENSE: ("InteriorPoint", {"curvature": "exact"}),
    LEARNT: ("InteriorPoint", {"curvature": "learnt"}),
}
"""Algorithms that a law names with a setting."""


@dataclass(frozen=True)
class Size:
    """A generated problem's size: sites, rows a site, columns, shift between sites, linear rows at each site."""

    sites: int = 10
    rows: int = 50
    columns: int = 20
    shift: float = 1.0
    constraints: int = 0

    @property
    def numbers(self) -> int:
        """How many numbers all sites' rows have."""
        return self.sites * self.rows * self.columns


@dataclass(frozen=True)
class Law:
    """A direction in which the problem grows, with the values of the quick and of the full study."""

    name: str
    title: str
    size: Callable[[float], Size]
    quick: tuple[float, ...]
    full: tuple[float, ...]
    algorithms: tuple[str, ...]
    most: Mapping[str, float] | None = None  # the largest value at which an algorithm is measured


LAWS = (
    Law("sites", "sites, 10 rows of 10 columns each", lambda v: Size(sites=int(v), rows=10, columns=10),
        (1, 10, 100, 1e3), (1, 10, 100, 1e3, 1e4, 1e5, 1e6), ("FedGiA", "InteriorPoint")),
    Law("columns", "columns", lambda v: Size(columns=int(v)),
        (10, 30, 100, 300), (10, 30, 100, 300, 1e3, 3e3, 1e4), ("FedGiA", DENSE, LEARNT), {DENSE: 1e3}),
    Law("rows", "rows in all, at 10 sites", lambda v: Size(rows=int(v) // 10),
        (1e3, 1e4, 1e5), (1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e7), ("FedGiA", "InteriorPoint")),
    Law("constraints", "linear rows at each of 10 sites", lambda v: Size(constraints=int(v)),
        (1, 10, 100), (1, 10, 100, 1e3, 1e4), ("InteriorPoint", "ProxAL")),
    Law("heterogeneity", "shift between the sites", lambda v: Size(shift=v),
        (0.25, 1.0, 4.0), (0.0625, 0.25, 1.0, 4.0, 16.0), ("FedGiA", "Scaffold", "FedDyn", "InteriorPoint")),
    Law(REAL, "real sites on this machine", lambda v: Size(sites=int(v)), (3,), (3, 10, 20, 30), ("LocalSGD",)),
)  # fmt: skip


def instance_of(size: Size) -> Instance:
    """Return the generated problem of a size, with its pooled reference."""
    dials = Dials(lambda seed: (np.zeros(0), np.zeros(0), None), (0, 0), (0, 0), deals=False,
                  columns=size.columns - 1, shift=size.shift)  # fmt: skip
    X, y, _ = draw_sites(dials, SEED, size.sites, size.rows)
    sample = Sample(X, (y > 0).astype(float), size.sites, size.rows)
    free = logistic_instance(sample)
    if size.constraints == 0:
        return free
    # half-spaces that cut the free optimum off a little, through points beyond which there is room
    draw = np.random.default_rng(SEED)
    C = draw.standard_normal((size.constraints, size.columns)) / math.sqrt(size.columns)
    C *= np.sign(C @ free.best.w)[:, None]
    d = 0.9 * np.max(C @ free.best.w) * np.ones(size.constraints)
    problem = Problem(
        sample.clients(),
        loss=losses.logistic,
        penalty=penalties.Ridge(RIDGE, False),
        constraints=[constraints.Linear(C, d)],
    )

    def judge(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return free.judge(models)[0], np.max(models @ C.T - d, axis=1)

    assert free.curve is not None
    return Instance(problem, judge, _within(free.curve, C, d, free.best), free.curve)


def _within(curve: reference.Curve, C: np.ndarray, d: np.ndarray, best: Reference) -> Reference:
    """The minimum under Cw ≤ d: under the rows that the last point breaks most, until it breaks none.

    A minimum under some of the rows that meets all of them is the minimum under all of them.
    """
    chosen = np.zeros(len(d), bool)
    while np.any((breaks := C @ best.w - d) > reference.PROVED):
        chosen[np.argsort(breaks)[-20:]] = True
        best = reference.minimum_under(curve, LinearRowCurves(C[chosen], d[chosen]), len(best.w))
    return best


@dataclass(frozen=True)
class LinearRowCurves:
    """Rows Cw − d."""

    C: np.ndarray
    d: np.ndarray

    def value(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.C @ w - self.d, self.C

    def hessian(self, w: np.ndarray, mu: np.ndarray) -> np.ndarray:
        return np.zeros((len(w), len(w)))


def measure(results: Results, quick: bool, begin: Callable[[str], None], echo: Callable[[str], None]) -> None:
    """Measure the points of all laws that have no row yet; a point that cannot be measured gets a row that says why."""
    for law, value, name in points(quick):
        begin(f"{law.name} {value:g}, {name}")
        if (law.name, value, name) in results:
            continue
        relieve()
        row: Json = {"law": law.name, "value": value, "algorithm": name}
        try:
            row |= real_figures(int(value)) if law.name == REAL else figures(law.size(value), name)
        except FoedusError as error:
            echo(f"{law.name} {value:g}, {name} left out: {error}")
            row |= {"why": str(error)}
        results.add(row)


def points(quick: bool) -> Iterator[tuple[Law, float, str]]:
    """Yield every law with each of its values and algorithms."""
    for law in LAWS:
        most = law.most or {}
        for value in law.quick if quick else law.full:
            yield from ((law, float(value), name) for name in law.algorithms if value <= most.get(name, math.inf))


def figures(size: Size, label: str) -> Json:
    """Return rounds to each accuracy, and the seconds, bytes and memory of a round, for an algorithm at a size."""
    before = resident(peak=False)
    forget_peak()
    instance = instance_of(size)
    name, settings = VARIANTS.get(label, (label, {}))
    limit = int(min(LIMIT, max(20, WORK // size.numbers)))

    def play() -> Trace:
        job = prepare(
            instance.problem, make("logistic", name, settings), w0=np.zeros(size.columns), seed=SEED, max_rounds=limit,
            participation=Fraction(),
        )  # fmt: skip
        return trace(job, lambda models: bool(np.any(instance.gap(models) <= ACCURACIES[-1])), math.inf)

    result = play()
    if size.numbers <= TWICE:
        result = play()
    gap = instance.gap(result.models)
    kind = int(np.bincount(result.kinds).argmax())
    return {
        "why": "",
        **{f"rounds_{tag(a)}": first_hit(gap, a) for a in ACCURACIES},
        "rounds_played": result.rounds,
        "seconds_a_round": float(result.seconds[-1]) / result.rounds,
        "bytes_up_a_round": result.up[kind],
        "bytes_down_a_round": result.down[kind],
        "data_bytes_a_site": nbytes(instance.problem.data) // size.sites,
        "state_bytes_a_site": result.state_bytes,
        "peak_bytes": max(0, resident(peak=True) - before),
    }


def real_figures(sites: int) -> Json:
    """Return the median seconds of a round over so many processes of NVIDIA FLARE on this machine."""
    from importlib.util import find_spec
    from tempfile import TemporaryDirectory

    if find_spec("nvflare") is None:
        raise FoedusError("rounds over real sites need NVIDIA FLARE: pip install 'foedus[flare]'.")
    from foedus.federation.flare.trial import Federation
    from foedus_lab.benchmarks.federation import play

    with TemporaryDirectory(prefix="foedus-") as folder:
        federation = Federation.up(Path(folder), sites)
        try:
            pace = play(federation, "aux", 100)
        finally:
            federation.down()
    return {"why": "", **{f"rounds_{tag(a)}": None for a in ACCURACIES}, "seconds_a_round": float(np.median(pace))}


def resident(peak: bool) -> int:
    """Return the bytes of memory that this process has, or has had at most; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    name = "VmHWM:" if peak else "VmRSS:"
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(name)), 0)


def forget_peak() -> None:
    """Let the peak of this process's memory begin anew, where the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return
