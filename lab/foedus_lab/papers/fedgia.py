"""FedGiA (Zhou and Li, *FedGiA: an efficient hybrid algorithm for federated learning*): Table IV and Figures 1-6."""

import gc
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from foedus.algorithms.fedavg import FirstOrder
from foedus.app.solve import solve
from foedus.base.errors import FoedusError
from foedus.problem.problem import Problem
from foedus.runtime.run import Run, versions
from foedus_lab.papers import fedgia_figures as figures
from foedus_lab.papers.drawing import keep_rows
from foedus_lab.papers.experiment import Options, PaperExperiment, progress
from foedus_lab.papers.fedgia_examples import EXAMPLES, K0, RegressionExample
from foedus_lab.papers.table import PaperTable

RULES = {"released": "stopped at ‖∇f‖²/m² <= tol, as released", "gradient": "stopped at ‖∇f‖² <= tol, rule (35)"}
DESCENT = "gradient descent"
QUICK_GRADIENTS = 60  # a client's gradients in one run of a quick table

# Table IV: objective, communication rounds and seconds for k0 = 1, 5, 10
PRINTED: dict[str, dict[str, tuple[tuple[float, float, float], ...]]] = {
    "V.1": {
        "FedAvg": ((1.744, 515.3, 1.18), (1.744, 112.0, 0.70), (1.744, 63.7, 0.64)),
        "FedProx": ((1.744, 315.7, 1.64), (1.744, 74.3, 1.41), (1.744, 49.9, 1.83)),
        "FedPD": ((1.744, 21.9, 0.15), (1.744, 15.1, 0.29), (1.744, 11.2, 0.42)),
        "FedGiA_D": ((1.744, 6.1, 0.11), (1.744, 3.0, 0.11), (1.744, 3.0, 0.11)),
        "FedGiA_G": ((1.744, 4.5, 0.13), (1.744, 3.0, 0.16), (1.744, 3.0, 0.19)),
    },
    "V.2": {
        "FedAvg": ((0.301, 597.4, 6.64), (0.301, 120.9, 3.83), (0.301, 61.2, 3.53)),
        "FedProx": ((0.301, 71.7, 2.01), (0.301, 15.8, 1.81), (0.301, 8.7, 1.93)),
        "FedPD": ((0.288, 20.5, 0.68), (0.292, 10.8, 1.31), (0.299, 7.6, 1.74)),
        "FedGiA_D": ((0.285, 5.7, 0.33), (0.285, 5.1, 0.34), (0.285, 5.0, 0.35)),
        "FedGiA_G": ((0.287, 5.2, 0.39), (0.285, 5.0, 0.60), (0.285, 4.9, 0.79)),
    },
    "V.3": {
        "FedAvg": ((0.331, 682.7, 7.90), (0.331, 138.3, 4.53), (0.331, 70.3, 4.15)),
        "FedProx": ((0.331, 83.7, 2.43), (0.331, 19.1, 2.27), (0.330, 11.0, 2.51)),
        "FedPD": ((0.322, 18.5, 0.66), (0.324, 10.0, 1.29), (0.330, 8.0, 1.89)),
        "FedGiA_D": ((0.318, 5.7, 0.34), (0.322, 5.1, 0.35), (0.322, 4.9, 0.36)),
        "FedGiA_G": ((0.320, 5.2, 0.40), (0.321, 5.0, 0.61), (0.321, 4.9, 0.81)),
    },
}

COLUMNS = ("algorithm", "k0", "objective", "printed", "diff.", "rounds", "printed", "diff.", "met", "s", "printed")

NOTES = (
    "objective: f over all clients, measured at the returned model",
    "rounds: every exchange counts, from the one that finds r_i to the one whose gradient passes the test; the "
    "released code does not count the latter",
    "met: instances in which the rule was met; a setting that misses it in the first instance is not tried on the "
    "others, so its figures are of that instance alone",
    "s: seconds without compiling, with the constants r_i included, on this machine; printed: MATLAB on a laptop",
    "gradient descent: FedAvg(k0=1) with step 1/(t·r), which FedGiA tends to as k0 grows",
    "a run ends after 1000 rounds, as in the paper, or when a client has computed "
    + ", ".join(f"{example.gradients:,} gradients ({example.name})" for example in EXAMPLES),
    "the data set sct (Santander customer transaction, Kaggle) is not available, so its rows are left out",
)


@dataclass
class Cell:
    """The results of one setting on its instances."""

    objectives: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    met: int = 0

    @property
    def hopeless(self) -> bool:
        return bool(self.rounds) and self.met == 0

    def add(self, run: Run) -> None:
        if run.interrupted:
            raise KeyboardInterrupt
        self.objectives.append(run.objective)
        self.rounds.append(run.rounds)
        self.seconds.append(run.seconds - run.compile_seconds)
        self.met += run.converged


@dataclass(frozen=True)
class TableRow:
    """A row of the table: averages over instances, and the printed figures if there are any."""

    example: str
    rule: str
    algorithm: str
    k0: int
    objective: float
    rounds: float
    seconds: float
    met: int
    instances: int
    paper_figures: tuple[float, float, float] | None

    def record(self) -> Mapping[str, object]:
        """Return the row with a named field for every figure."""
        names = ("objective", "rounds", "seconds")
        figures = {k: v for k, v in vars(self).items() if k != "paper_figures"}
        paper = dict(zip(names, self.paper_figures or ("", "", ""), strict=True))
        return figures | {f"{name}_printed": paper[name] for name in names}

    def cells(self, same_algorithm: bool) -> tuple[str, ...]:
        """Return the row as text, without the algorithm's name if it is that of the row above."""
        objective, rounds, seconds = self.paper_figures or (None, None, None)
        all_met = self.met == self.instances
        return (
            "" if same_algorithm else self.algorithm,
            f"{self.k0}",
            f"{self.objective:.3f}",
            "" if objective is None else f"{objective:.3f}",
            "" if objective is None else f"{self.objective - objective:+.3f}",
            f"{self.rounds:.1f}" if all_met else f"> {self.rounds:.0f}",
            "" if rounds is None else f"{rounds:.1f}",
            "" if rounds is None or not all_met else f"{self.rounds - rounds:+.1f}",
            f"{self.met}/{self.instances}",
            f"{self.seconds:.2f}",
            "" if seconds is None else f"{seconds:.2f}",
        )


def settings(example: RegressionExample, problem: Problem, rule: str) -> Iterator[tuple[str, int, FirstOrder]]:
    """Yield the name, k0 and algorithm of every row of one example under one rule."""
    for k0 in K0:
        for name, algorithm in (example.algorithms(k0, rule) | example.variants(k0, rule)).items():
            yield name, k0, algorithm
    yield DESCENT, 1, example.gradient_descent(problem, rule)


def measure(example: RegressionExample, options: Options) -> list[TableRow]:
    """Solve the example's instances with every algorithm under both rules."""
    cells: dict[tuple[str, str, int], Cell] = {}
    trials = options.instances(5)
    each = sum(len(example.algorithms(k0, rule) | example.variants(k0, rule)) for k0 in K0 for rule in RULES) + len(
        RULES
    )
    with progress(trials * each) as step:
        for trial in range(trials):
            began = time.perf_counter()
            problem = example.instance(options.seed, trial)
            for rule in RULES:
                for name, k0, algorithm in settings(example, problem, rule):
                    step(f"{example.name}, instance {trial + 1} of {trials}, {name}, k0 = {k0}")
                    cell = cells.setdefault((rule, name, k0), Cell())
                    if not cell.hopeless:
                        limit = example.limit(algorithm, QUICK_GRADIENTS) if options.quick else example.limit(algorithm)
                        cell.add(solve(problem, algorithm, seed=trial, max_rounds=limit))
            del problem
            gc.collect()  # an instance of V.2 takes half a gigabyte
            options.echo(f"{example.name}: instance {trial + 1} of {trials}, {time.perf_counter() - began:.0f} s")
    return list(lines(example, cells))


def lines(example: RegressionExample, cells: dict[tuple[str, str, int], Cell]) -> Iterator[TableRow]:
    """Yield the rows in the order of Table IV: by rule, algorithm, then k0."""
    paper = PRINTED[example.name]
    names = dict.fromkeys(name for _, name, _ in cells)
    order = sorted(names, key=lambda name: list(paper).index(name) if name in paper else len(paper))
    for rule in RULES:
        for name in order:
            for k0 in K0:
                if (cell := cells.get((rule, name, k0))) is None:
                    continue
                yield TableRow(
                    example.name,
                    rule,
                    name,
                    k0,
                    float(np.mean(cell.objectives)),
                    float(np.mean(cell.rounds)),
                    float(np.mean(cell.seconds)),
                    cell.met,
                    len(cell.rounds),
                    paper[name][K0.index(k0)] if name in paper else None,
                )


def tables(example: RegressionExample, table_rows: list[TableRow]) -> list[PaperTable]:
    """Return one table for each rule."""
    results = []
    for rule, words in RULES.items():
        rows, last = [], ""
        for line in table_rows:
            if line.rule == rule:
                rows.append(line.cells(same_algorithm=line.algorithm == last))
                last = line.algorithm
        results.append(PaperTable(f"{example.title}; {words}", COLUMNS, tuple(rows)))
    return results


def table_four(options: Options) -> None:
    """Make Table IV: five algorithms, three values of k0, both stopping rules, the printed figures beside ours."""
    table_rows: list[TableRow] = []
    page = ["# Table IV of the FedGiA paper", ""]
    page += [f"seed {options.seed}, {options.instances(5)} instances" + (", quick" if options.quick else "")]
    page += [", ".join(f"{name} {number}" for name, number in versions().items()), ""]
    missing: dict[str, list[str]] = {}
    for example in EXAMPLES:
        try:
            example.data()
        except FoedusError as error:
            missing.setdefault(str(error), []).append(example.name)
            continue
        mine = measure(example, options)
        table_rows += mine
        for table in tables(example, mine):
            options.echo(table)
            page += [table.markdown()]
    absent = [f"{' and '.join(names)} left out: {why}" for why, names in missing.items()]
    notes = "\n".join(f"- {note}" for note in (*absent, *NOTES))
    options.echo(notes)
    page += [notes]
    options.keep("fedgia-table4.md", ("\n".join(page) + "\n").encode())
    keep_rows(options, "fedgia-table4", [line.record() for line in table_rows])


EXPERIMENTS = (
    PaperExperiment("fedgia-table4", "FedGiA, Table IV: five algorithms on Examples V.1-V.3", table_four),
    *figures.EXPERIMENTS,
)
