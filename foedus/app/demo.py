"""The demo: trains one model under terms that every site can check, then compares algorithms on the same data."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console

import foedus as fd
from foedus.app.report import html, words
from foedus.app.report.comparison import Entry, draw, drawable, standing, table
from foedus.base.engine import float64
from foedus.base.errors import FoedusError, did_you_mean
from foedus.data.partition import Sites
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm
from foedus.statistics.evaluate import HELD_OUT

HOLDOUT = 0.2  # the share of each site's rows that take no part in training
RIDGE = 0.02  # mu of the penalty (mu/2)‖w‖²
BREAST_CANCER = "breast-cancer data"
CONSTANT = 1e-12  # a deviation below this, of a column whose largest entry is 1, is rounding error


@dataclass(frozen=True)
class Examples:
    """A table of examples before it is split: features (rows, columns), labels (rows,), and a title."""

    x: np.ndarray
    y: np.ndarray
    title: str

    @property
    def rows(self) -> int:
        """The number of examples."""
        return len(self.y)


def breast_cancer() -> Examples:
    """Return scikit-learn's breast-cancer data, 569 examples of 30 features; label 1 is malignant."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return Examples(np.asarray(x), 1.0 - np.asarray(y), BREAST_CANCER)


def read_csv(path: Path) -> Examples:
    """Read a comma-separated file whose last column is the label; a first line without numbers is a header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except OSError as error:
        raise FoedusError(f"cannot read {path}: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise FoedusError(f"cannot read {path}: expected comma-separated text in UTF-8 ({error}).") from None
    header: list[str] | None = None
    if lines and all(_number(cell) is None for cell in lines[0][1]):
        header = [cell.strip() for cell in lines.pop(0)[1]]
    if not lines:
        raise FoedusError(f"{path} has no examples; expected one a line, with the label in the last column.")
    width = len(lines[0][1]) if header is None else len(header)
    if width < 2:
        raise FoedusError(f"{path} has one column; expected features and a label, separated by commas.")
    values = np.empty((len(lines), width))
    for row, (line, cells) in enumerate(lines):
        if len(cells) != width:
            first = "the header" if header is not None else f"line {lines[0][0]}"
            raise FoedusError(f"{path}, line {line}: it has {len(cells)} cells, but {first} has {width}.")
        for column, cell in enumerate(cells):
            value = _number(cell)
            if value is None or not math.isfinite(value):
                place = f"column {column + 1}" + (f" ({header[column]})" if header is not None else "")
                raise FoedusError(
                    f"{path}, line {line}, {place}: expected a finite number. Got {cell.strip()!r} instead."
                )
            values[row, column] = value
    _check_labels(path, values[:, -1], [line for line, _ in lines])
    return Examples(values[:, :-1], values[:, -1], path.name)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _check_labels(path: Path, y: np.ndarray, lines: Sequence[int]) -> None:
    labels = set(y.tolist())
    expected_labels = {0.0, 1.0} if 0.0 in labels else {-1.0, 1.0}
    if wrong := labels - expected_labels:
        row = next(i for i, value in enumerate(y) if value in wrong)
        raise FoedusError(
            f"{path}, line {lines[row]}: the label, in the last column, is {y[row]:g}; "
            "expected 0/1 or -1/+1 throughout the file."
        )
    if len(labels) == 1:
        raise FoedusError(f"{path}: every label is {y[0]:g}; expected examples of both classes, 0/1 or -1/+1.")


def standardise(x: np.ndarray) -> np.ndarray:
    """Bring columns to mean 0 and deviation 1, and add a column of ones for the intercept; a constant column becomes 0.

    Means and deviations are those of the whole table. Real sites would have to agree on them first.
    """
    size = np.max(np.abs(x), axis=0)
    x = x / np.where(size > 0, size, 1.0)  # the squares of very large entries must not overflow
    x = x - x.mean(axis=0)
    deviation = x.std(axis=0)
    varies = deviation > CONSTANT
    x = np.where(varies, x / np.where(varies, deviation, 1.0), 0.0)
    return np.column_stack([x, np.ones(len(x))])


def problem_of(examples: Examples, sites: int, seed: int) -> fd.Problem:
    """Return the problem without terms: ridge-penalised logistic regression, the examples dealt out to the sites."""
    if not 1 <= sites <= examples.rows:
        raise FoedusError(f"--sites must be in [1, {examples.rows}], the number of examples. Got {sites} instead.")
    clients = fd.data.split(standardise(examples.x), examples.y, clients=sites, seed=seed)
    return fd.Problem(clients, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(RIDGE, per_example=False))


def hold_out(clients: Sites, seed: int) -> tuple[Sites, Sites]:
    """Divide the rows of each site into those that train and a fifth, of each class, that shows how good the model is.

    A class of fewer than five rows at a site trains as a whole.
    """
    training, new = {}, {}
    for k, (name, arrays) in enumerate(clients.items()):
        draw, out = np.random.default_rng([seed, k]), np.zeros(len(arrays[1]), dtype=bool)
        for label in np.unique(arrays[1]):
            rows = draw.permutation(np.flatnonzero(arrays[1] == label))
            out[rows[: int(HOLDOUT * len(rows))]] = True
        training[name], new[name] = (tuple(part[rows] for part in arrays) for rows in (~out, out))
    return training, new


def terms_of(examples: Examples, sites: int, seed: int, max_loss: float) -> tuple[fd.Problem, Sites]:
    """Return the Neyman-Pearson problem, and rows that take no part in it.

    It asks for the least loss on label 0, with the loss on label 1 capped at every site.
    """
    fewest = int(min(np.sum(examples.y == label) for label in np.unique(examples.y)))
    if not 1 <= sites <= fewest:
        raise FoedusError(
            f"--hospitals must be in [1, {fewest}], so that each has examples of both labels. Got {sites} instead."
        )
    clients = fd.data.split(standardise(examples.x), examples.y, clients=sites, seed=seed, by="label")
    if examples.title == BREAST_CANCER:
        clients = {name.replace("site", "hospital"): arrays for name, arrays in clients.items()}
    clients, new = hold_out(clients, seed)
    low = float(np.min(examples.y))
    cap = fd.constraints.LossCap(fd.label(1), at_most=max_loss)
    ridge = fd.penalties.Ridge(RIDGE, per_example=False)  # without it a plane separates the classes, and no cap binds
    problem = fd.Problem(clients, loss=fd.losses.logistic, where=fd.label(low), penalty=ridge, constraints=[cap])
    return problem, new


def algorithms_called(names: str) -> dict[str, Algorithm]:
    """Return the algorithms with these names, separated by commas and in any case, each with its default settings."""
    members = (getattr(fd, name) for name in fd.__all__)
    classes = {cls.__name__: cls for cls in members if isinstance(cls, type) and issubclass(cls, Algorithm)}
    by_lower = {name.lower(): name for name in classes}
    requests = [name.strip() for name in names.split(",") if name.strip()]
    if not requests:
        raise FoedusError(f"--algorithms names none; expected some of {', '.join(sorted(classes))}.")
    algorithms = {}
    for name in requests:
        if name.lower() not in by_lower:
            hint = did_you_mean(name.lower(), by_lower)
            raise FoedusError(f"there is no algorithm {name!r}, only {', '.join(sorted(classes))}.{hint}")
        class_name = by_lower[name.lower()]
        algorithms[class_name] = classes[class_name]()
    return algorithms


@partial(jax.jit, static_argnames=("terms",))
def _mean_value_and_gradient(terms: Terms, w: Array, data: Data) -> tuple[Array, Array]:
    values, gradients = jax.vmap(lambda d: jax.value_and_grad(terms.value)(w, d))(data)
    return jnp.mean(values), jnp.mean(gradients, axis=0)


def squared_gradient(problem: fd.Problem, w: np.ndarray) -> float:
    """Return ‖∇f(w)‖² over all clients."""
    return float(jnp.sum(_mean_value_and_gradient(problem.terms, jnp.asarray(w), problem.data)[1] ** 2))


def optimum(problem: fd.Problem) -> float:
    """Return the least f, by scipy with all data in one place; the federated runs are compared with it."""
    from scipy.optimize import minimize

    def value_and_gradient(w: np.ndarray) -> tuple[float, np.ndarray]:
        f, g = _mean_value_and_gradient(problem.terms, jnp.asarray(w), problem.data)
        return float(f), np.asarray(g)

    limits = {"maxiter": 20_000, "maxfun": 40_000, "gtol": 1e-10, "ftol": 1e-16}
    return float(
        minimize(value_and_gradient, np.zeros(problem.terms.dim), jac=True, method="L-BFGS-B", options=limits).fun
    )


def compare(
    problem: fd.Problem, algorithms: Mapping[str, Algorithm], seed: int, progress: bool = False
) -> dict[str, Entry]:
    """Solve the problem with each algorithm."""
    entries = {}
    for name, algorithm in algorithms.items():
        run = fd.solve(problem, algorithm, seed=seed, progress=progress)
        if run.interrupted:
            raise KeyboardInterrupt
        entries[name] = Entry(run, squared_gradient(problem, run.w))
    return entries


@float64()
def demo(
    *,
    algorithms: str,
    data: Path | None,
    hospitals: int,
    max_loss: float,
    sites: int,
    seed: int,
    out: Path,
    console: Console,
    command: str = "foedus",
) -> None:
    """Train under terms, then compare algorithms without; show both results, and save them in the folder `out`."""
    algorithm_by_name = algorithms_called(algorithms)
    examples = breast_cancer() if data is None else read_csv(data)
    problem = problem_of(examples, sites, seed)
    problem_under_terms, new = terms_of(examples, hospitals, seed, max_loss)
    console.print(
        f"1. Constrained. {examples.title}: {examples.rows} examples at {hospitals} sites, logistic regression, ridge "
        "penalty.\n"
        f"   Least loss on {'benign' if data is None else 'negative'} cases, while the mean loss on "
        f"{'malignant' if data is None else 'positive'} ones (label 1) is at most {max_loss:g} at every site.",
        soft_wrap=True,
    )
    run = fd.solve(problem_under_terms, seed=seed, progress=console.is_terminal)
    if run.interrupted:
        raise KeyboardInterrupt
    if all(len(np.unique(y)) == 2 for _, y in new.values()):
        run.evaluations[HELD_OUT] = fd.evaluate(problem_under_terms, run.w, new, source=HELD_OUT)
    console.print(str(run), soft_wrap=True)
    kinds = ("benign", "malignant") if data is None else ("negative", "positive")
    page = html.write(
        {examples.title: run},
        run.save(out / "under-terms") / "report.html",
        {
            "title": f"{examples.title} at {hospitals} sites",
            "words": f"The least loss on {kinds[0]} cases, while the mean loss on {kinds[1]} ones (label 1) is at most "
            f"{max_loss:g} at every site.",
        },
    )
    console.print(
        f"\n2. Unconstrained. {examples.title}: {examples.rows} examples at {sites} sites, logistic regression, "
        f"{problem.terms.dim} parameters, ridge penalty",
        soft_wrap=True,
    )
    entries = compare(problem, algorithm_by_name, seed, progress=console.is_terminal)
    best = optimum(problem)
    console.print(table(entries))
    for name, entry in entries.items():
        console.print(f"{name}: {entry.run.reason}.", soft_wrap=True)

    runs = {name: entry.run for name, entry in entries.items()}
    for name, algorithm_run in runs.items():
        algorithm_run.save(out / name)
    pages = [page, html.write(runs, out / "comparison.html", {"title": f"{examples.title} at {sites} sites"})]
    sentence = f"The runs are kept in {out}"
    if drawable():
        picture = out / "comparison.png"
        names_drawn = draw(runs, best, picture, title=f"{examples.title}, {sites} sites")
        sentence += f", their picture is {picture}"
        if missing := [name for name in runs if name not in names_drawn]:
            sentence += f" (without {', '.join(missing)}: no record of the objective)"
    else:
        sentence += "; a picture of them needs matplotlib: pip install 'foedus[plot]'"
    console.print()
    console.print(
        f"With all data in one place scipy finds {best:.8f}; above it end {standing(runs, best)}.", soft_wrap=True
    )
    console.print(f"{sentence}.\n", soft_wrap=True)
    did = f"trained one model over {hospitals} sites under a cap ({words.verdict(run).title.lower()})"
    console.print(f"What it did: {did}, then compared {', '.join(runs)} without constraints.", soft_wrap=True)
    console.print(
        f"Open next: {pages[0]} for the constraints site by site, {pages[1]} for the algorithms.", soft_wrap=True
    )
    console.print(
        f"Try next: {command} demo --max-loss 0.1 --hospitals 10 --algorithms FedGiA,Scaffold,FedPD, "
        f"or {command} demo --data FILE.csv on a table of your own.",
        soft_wrap=True,
    )
