"""The grid of the study: its cells, which of them a user asks for, and the measuring of one.

A cell is a problem, a data set, an algorithm, a kind of settings and a seed, and gives one row of the results. Cells
are taken in an order in which an unfinished study is worth most: all defaults first, tuned settings last.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from threadpoolctl import threadpool_limits

from foedus.base.engine import relieve
from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.privacy.releasing import Releasing
from foedus.privacy.total import Local
from foedus.protocol.participation import Fraction
from foedus.runtime.spine import Job, prepare
from foedus_lab.study import methods
from foedus_lab.study.instances import PROBLEMS, Instance
from foedus_lab.study.methods import DEFAULT, KINDS, TUNED, Settings
from foedus_lab.study.networks import NETWORKS
from foedus_lab.study.play import CAPACITY, Trace, trace
from foedus_lab.study.rows import ABSENT, ACCURACIES, FAILED, MEASURED, Results, tag
from foedus_lab.study.tables import SOURCES

TUNING_SEED = 10_000  # the draw of the data on which settings are tuned; no measured seed reaches it
DELTA = 1e-5  # of a private problem
PRIVATE_ROUNDS = 40  # of a private run, over which its total is spread; an algorithm may have a number of its own
STILL = 0.99  # a run stands still whose least gap a further stretch of CAPACITY rounds does not bring below this share


@dataclass(frozen=True)
class Scale:
    """How large a study is: seeds, the limits of a run, and how many settings tuning may try beside the defaults."""

    name: str
    seeds: int
    rounds: int
    gradients: int  # passes of a site over its data in one run, in gradients
    tries: int

    @property
    def quick(self) -> bool:
        """Whether data sets have their small sizes."""
        return self.name == "quick"


QUICK = Scale("quick", seeds=10, rounds=1000, gradients=20_000, tries=2)
FULL = Scale("full", seeds=10, rounds=10_000, gradients=200_000, tries=4)


@dataclass(frozen=True)
class Cell:
    """One row of the study, to be measured."""

    problem: str
    data: str
    algorithm: str
    settings: str  # one of KINDS
    seed: int

    @property
    def key(self) -> tuple[object, ...]:
        """What tells the cell from all others."""
        return (self.problem, self.data, self.algorithm, self.settings, self.seed)

    def __str__(self) -> str:
        return "/".join(map(str, self.key))


def cells(scale: Scale, own: tuple[str, ...] = ()) -> Iterator[Cell]:
    """Yield the cells of a grid in the order in which they are measured."""
    for kind in KINDS:
        for problem, row in PROBLEMS.items():
            for data in row.quick if scale.quick else row.full:
                yield from _cells_of(problem, data, kind, scale, own)


def _cells_of(problem: str, data: str, kind: str, scale: Scale, own: tuple[str, ...]) -> Iterator[Cell]:
    for name in methods.names(own):
        if methods.solves(problem, name) and methods.settings_of(problem, name, kind):
            yield from (Cell(problem, data, name, kind, seed) for seed in range(scale.seeds))


def select(only: str, scale: Scale, own: tuple[str, ...] = ()) -> list[Cell]:
    """Return the cells that a path such as "logistic/w8a/FedGiA" names; a wrong name raises, with those there are.

    The parts are a problem, a data set, an algorithm, a kind of settings and a seed; those left out stand for all.
    """
    parts = only.strip("/").split("/")
    names = [
        tuple(PROBLEMS),
        tuple(dict.fromkeys((*SOURCES, "paper-25"))),
        methods.names(own),
        KINDS,
        tuple(map(str, range(scale.seeds))),
    ]
    whats = ("problem", "data set", "algorithm", "kind of settings", "seed")
    if len(parts) > len(names):
        raise FoedusError(f"--only {only}: expected at most {len(names)} parts, {', '.join(whats)}, between slashes.")
    for part, choices, what in zip(parts, names, whats, strict=False):
        if part not in choices:
            listing = f"there are {', '.join(choices)}"
            raise FoedusError(f"--only {only}: there is no {what} {part!r}; {listing}.{did_you_mean(part, choices)}")
    selection = [c for c in cells(scale, own) if all(p == str(k) for p, k in zip(parts, c.key, strict=False))]
    row = PROBLEMS[parts[0]]
    if not selection and len(parts) > 1 and parts[1] not in (row.quick if scale.quick else row.full):
        # a data set of the full grid in a quick study: its rows are made, with the quick number of sites and rows
        if parts[1] not in row.full:
            raise FoedusError(f"--only {only}: the data sets of {parts[0]} are {', '.join(row.full)}.")
        others = (c for kind in KINDS for c in _cells_of(parts[0], parts[1], kind, scale, own))
        selection = [c for c in others if all(p == str(k) for p, k in zip(parts, c.key, strict=False))]
    if not selection:
        reason = methods.why_not(parts[0], parts[2]) or f"{parts[2]} has no {parts[3]} settings for {parts[0]}"
        raise FoedusError(f"--only {only}: {reason}.")
    return selection


@lru_cache(maxsize=12)  # the seeds of one problem on one data set, and the draw for tuning
def instance_of(problem: str, data: str, seed: int, quick: bool) -> Instance:
    """Return a problem on one draw of its data, with its reference."""
    return PROBLEMS[problem].build(data, seed, quick)


class Study:
    """Measures cells into a results file, and remembers tuned settings and absent data while it runs."""

    def __init__(self, scale: Scale, results: Results, echo: Callable[[str], None]):
        self.scale, self.results, self.echo = scale, results, echo
        self.choices: dict[tuple[str, str, str], Settings] = {}
        self.refusals: dict[tuple[str, str, str], str] = {}

    def run(self, selection: list[Cell], again: bool, begin: Callable[[str], None]) -> None:
        """Measure the cells; those with a row are passed over unless they are to be measured `again`."""
        with threadpool_limits(1):  # matrices are small; on busy cores more threads wait for each other
            for cell in selection:
                begin(str(cell))
                if again or cell.key not in self.results:
                    relieve()
                    self.results.add(self.measure(cell))

    def measure(self, cell: Cell) -> Json:
        """Return the row of a cell: its figures, or a sentence on why there are none."""
        row: Json = {
            "problem": cell.problem,
            "data": cell.data,
            "algorithm": cell.algorithm,
            "settings": cell.settings,
            "seed": cell.seed,
            "scale": self.scale.name,
        }
        place = (cell.problem, cell.data, cell.algorithm)
        if place in self.refusals:
            return row | {"status": ABSENT, "why": self.refusals[place]}
        try:
            instance = instance_of(cell.problem, cell.data, cell.seed, self.scale.quick)
            if PROBLEMS[cell.problem].epsilon is None:
                why = methods.refusal(cell.problem, cell.algorithm, instance.problem)
            else:  # some algorithms fit a problem only with noise
                why = self._without_private_form(cell, instance)
        except FoedusError as error:
            return row | self._leave_out(place, str(error))
        if why is not None:
            return row | self._leave_out(place, why)
        clock = stopwatch()
        try:
            figures = self._figures(cell, instance)
            return row | figures | {"measuring_seconds": round(clock(), 2)}
        except FoedusError as error:
            self.echo(f"{cell} failed: {error}")
            return row | {"status": FAILED, "why": str(error)}

    def _leave_out(self, place: tuple[str, str, str], why: str) -> Json:
        self.refusals[place] = why
        self.echo(f"{'/'.join(place)} left out: {why}")
        return {"status": ABSENT, "why": why}

    def _without_private_form(self, cell: Cell, instance: Instance) -> str | None:
        """Why an algorithm cannot keep the privacy of a problem, or None."""
        try:
            self._job(cell, instance, {}, 0.0)
        except FoedusError as error:
            return str(error)
        return None

    def _figures(self, cell: Cell, instance: Instance) -> Json:
        settings = self._settings(cell)
        steady, gap = self._trace(cell, instance, settings, 0.0)
        row: Json = {"status": MEASURED, "why": "", "with": dict(settings), "best": instance.best.value}
        row |= {"reference": instance.best.method} | figures(steady, gap)
        for network in NETWORKS:
            if network.dropout == 0:
                row |= network_figures(gap, network.name, network.seconds(steady))
            elif cell.settings == DEFAULT and PROBLEMS[cell.problem].objective != "private":
                lossy, lossy_gap = self._trace(cell, instance, settings, network.dropout)
                row |= network_figures(lossy_gap, network.name, network.seconds(lossy))
                row["rounds_played_" + network.name] = lossy.rounds
        return row

    def _settings(self, cell: Cell) -> Settings:
        """The settings of a cell; tuned ones are found on a draw of the data that is not measured."""
        if cell.settings != TUNED:
            return methods.settings_of(cell.problem, cell.algorithm, cell.settings)[0]
        place = (cell.problem, cell.data, cell.algorithm)
        if place not in self.choices:
            instance = instance_of(cell.problem, cell.data, TUNING_SEED, self.scale.quick)
            tries = methods.settings_of(cell.problem, cell.algorithm, TUNED)[: self.scale.tries]
            scores: list[tuple[tuple[float, ...], int, Settings]] = []
            for number, settings in enumerate([{}, *tries]):
                try:
                    _, gap = self._trace(cell, instance, settings, 0.0)
                except FoedusError:
                    continue  # a candidate that does not fit this problem
                scores.append((score(gap), number, settings))
            self.choices[place] = min(scores)[2] if scores else {}
        return self.choices[place]

    def _job(self, cell: Cell, instance: Instance, settings: Settings, dropout: float) -> Job:
        epsilon = PROBLEMS[cell.problem].epsilon
        algorithm = methods.make(cell.problem, cell.algorithm, settings)
        own = algorithm.private_rounds(instance.problem) if isinstance(algorithm, Releasing) else None
        return prepare(
            instance.problem,
            algorithm,
            w0=methods.start(instance.problem),
            seed=cell.seed,
            max_rounds=self.scale.rounds if epsilon is None else own or PRIVATE_ROUNDS,
            participation=Fraction(dropout=dropout),
            privacy=None if epsilon is None else Local(epsilon=epsilon, delta=DELTA),
        )

    def _trace(self, cell: Cell, instance: Instance, settings: Settings, dropout: float) -> tuple[Trace, np.ndarray]:
        """The record of a run, and the gap of the model after each of its rounds."""
        verdict = Verdict(instance)
        result = trace(self._job(cell, instance, settings, dropout), verdict, self.scale.gradients)
        return result, np.concatenate(verdict.gaps)


class Verdict:
    """Says after each stretch of rounds whether a run may end: it has arrived, or it stands still."""

    def __init__(self, instance: Instance):
        self.instance, self.least = instance, np.inf
        self.gaps: list[np.ndarray] = []  # of the models that were judged

    def __call__(self, models: np.ndarray) -> bool:
        self.gaps.append(self.instance.gap(models))
        least = float(np.min(self.gaps[-1]))
        if least <= ACCURACIES[-1]:
            return True
        still = len(models) == CAPACITY and not least < STILL * self.least
        self.least = min(least, self.least)
        return still


def score(gap: np.ndarray) -> tuple[float, ...]:
    """Return what tuning makes small: missed accuracies, then rounds to the strictest one reached, then the gap."""
    hits = [first_hit(gap, accuracy) for accuracy in ACCURACIES]
    rounds = [hit for hit in hits if hit is not None]
    return (len(hits) - len(rounds), float(rounds[-1] if rounds else 0), float(np.min(gap)))


def first_hit(gap: np.ndarray, accuracy: float) -> int | None:
    """Return the number of the first round whose model is that accurate, or None."""
    hits = np.flatnonzero(gap <= accuracy)
    return int(hits[0]) + 1 if len(hits) else None


def figures(trace: Trace, gap: np.ndarray) -> Json:
    """Return what a run cost up to each accuracy; a field is None where the run did not reach it."""
    up = np.cumsum(np.asarray(trace.up)[trace.kinds] * trace.answers)
    down = np.cumsum(np.asarray(trace.down)[trace.kinds] * trace.requests)
    work = np.cumsum(np.asarray(trace.gradients)[trace.kinds])
    row: Json = {
        "sites": trace.clients,
        "columns": int(trace.models.shape[1]),
        "rounds_played": trace.rounds,
        "gap_least": float(np.min(gap)),
        "gap_end": float(gap[-1]),
        "compile_seconds": round(trace.compile_seconds, 3),
    }
    for accuracy in ACCURACIES:
        hit, name = first_hit(gap, accuracy), tag(accuracy)
        columns = {"rounds": None, "bytes_up": up, "bytes_down": down, "gradients": work, "seconds": trace.seconds}
        for what, values in columns.items():
            value = hit if values is None or hit is None else float(values[hit - 1])
            row[f"{what}_{name}"] = value
    return row


def network_figures(gap: np.ndarray, name: str, seconds: np.ndarray) -> Json:
    """Return the modelled seconds to each accuracy over a network."""
    hits = {tag(accuracy): first_hit(gap, accuracy) for accuracy in ACCURACIES}
    return {f"{name}_{word}": None if hit is None else float(seconds[hit - 1]) for word, hit in hits.items()}


def stopwatch() -> Callable[[], float]:
    """Return a function that tells the processor seconds of this process since now."""
    began = time.process_time()
    return lambda: time.process_time() - began
