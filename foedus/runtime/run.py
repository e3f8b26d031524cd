"""Run: the result of `solve` with everything that is known about it, and the folder that it is saved in."""

import dataclasses
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json, pack, unpack, write_whole
from foedus.base.notebook import html_of, latex_table
from foedus.base.pytrees import PyTree, Traffic
from foedus.base.quantities import count, duration, size
from foedus.certificate.measure import Certificate
from foedus.privacy.ledger import Ledger
from foedus.problem.losses import class_of
from foedus.problem.weights import in_words

if TYPE_CHECKING:
    import pandas

    from foedus.data.preprocess import Preprocessing
    from foedus.problem.problem import Problem
    from foedus.statistics.coefficients import CoefficientTable
    from foedus.statistics.evaluate import Evaluation
    from foedus.statistics.prediction import Predictor, Rows
    from foedus.statistics.rates import Decision

SCHEMA = 1  # of the files that `Run.save` writes
RULES, PLAN = "preprocessing.json", "plan.json"


@dataclass
class Run:
    """The result of `solve`. Print it to read it; `save` writes it into a folder.

    Attributes:
        w: the model, in the shape of `w0`.
        objective: f(w) + h(w) over all clients, measured at `w` after the run.
        rounds: the communication rounds that were played.
        converged: whether the algorithm's stopping test was met.
        reason: a sentence on why the run ended.
        certificate: what was measured at `w`: every constraint's slack, and the distance from stationarity.
        history: one entry a round in each named column.
        traffic: the bytes that were sent.
        seconds: the time of the run; `compile_seconds` of it went into compiling.
        settings: everything that the run was made with, as JSON holds it.
        multipliers: the dual values by scope: "local", "global", "coupled".
        names: the clients' names.
        interrupted: whether the run was ended from outside before it was over.
        ledger: the privacy ledger of a run with noise.
        refused: replies of real sites that were not accepted: whose, and why.
        left_out: real sites that the run went on without, and why; `names` and the certificate are about the others.
        worst_case: of a robust algorithm, the worst-case loss and the weights and moves that reach it.
        decision: where a term caps a miss rate or false alarms, the threshold on the score and what it rests on.
        evaluations: figures on rows that took no part in training, by the name of the rows.
        coefficients: the model in units of the data with standard errors, of a run of an experiment file.
        classes: the labels of the negative and of the positive class, as in the arrays; empty for a regression.
        plan: what real sites have agreed to: its digest, who has signed it, how answers are added up, and its limits.
        rules: how raw rows become numbers, where `foedus run` or `fd.data.prepare` prepared the data.

    Example:
        >>> import foedus as fd, numpy as np
        >>> problem = fd.Problem([(np.eye(2), np.array([1.0, 2.0]))], loss=fd.losses.least_squares)
        >>> run = fd.solve(problem, fd.FedGiA())
        >>> run.converged, run.certificate.holds(), run.w.round(3).tolist()
        (True, True, [1.0, 2.0])
    """

    w: PyTree
    objective: float
    rounds: int
    converged: bool
    reason: str
    certificate: Certificate
    history: dict[str, np.ndarray]
    traffic: Traffic
    seconds: float
    compile_seconds: float
    settings: Json
    multipliers: dict[str, np.ndarray] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    interrupted: bool = False
    ledger: Ledger | None = None
    refused: tuple[str, ...] = ()  # replies of real sites that were not accepted: whose, and why
    left_out: dict[str, str] = field(default_factory=dict)  # real sites that the run went on without, and why
    # of a robust algorithm, a `foedus.robust.stress.Stress`: each client's worst-case loss, the weights and the moves
    worst_case: Any = None
    decision: "Decision | None" = None
    evaluations: "dict[str, Evaluation]" = field(default_factory=dict)
    coefficients: "CoefficientTable | None" = None
    classes: tuple[float, ...] = ()
    rules: "Preprocessing | None" = None
    plan: Json | None = None

    @property
    def evaluation(self) -> "Evaluation | None":
        """The figures on held-out rows; where none were held out, those on the rows evaluated last; or None."""
        return self.evaluations.get("held-out rows") or next(reversed(self.evaluations.values()), None)

    def to_latex(self) -> str:
        r"""Return what came out of the run as a table of LaTeX: each cap at each site, or the run in figures.

        Returns:
            A `tabular` with the rules of booktabs.
        """
        rows = self.certificate.rows
        if rows:
            titles = ("site", "constraint", "value", "cap", "multiplier")
            cells = [(r.site, r.constraint, f"{r.value:.4f}", f"{r.cap:.4g}", f"{r.multiplier:.4g}") for r in rows]
            return latex_table(titles, cells, left=(0, 1))
        titles = ("algorithm", "objective", "rounds", "sent")
        figures = (f"{self.objective:.6g}", str(self.rounds), size(self.traffic.up + self.traffic.down))
        return latex_table(titles, [(self.settings["algorithm"]["name"], *figures)])

    @property
    def log_odds(self) -> bool:
        """Whether the model's scores are log-odds, so that they stand for probabilities."""
        loss = self.settings.get("problem", {}).get("loss")
        return isinstance(loss, dict) and class_of(str(loss.get("name", ""))).log_odds

    def __str__(self) -> str:
        algorithm = self.settings["algorithm"]["name"]
        silent = self.certificate.silent
        lines = [
            f"{algorithm} over {count(len(self.names), 'client')}: {self.reason}.",
            f"objective {'not measured' if silent else format(self.objective, '.6g')} after "
            f"{count(self.rounds, 'round')}, {size(self.traffic.up)} up and {size(self.traffic.down)} down, "
            f"{duration(self.seconds)} ({duration(self.compile_seconds)} of it compiling)",
            str(self.certificate) if self.worst_case is None else str(self.worst_case),
        ]
        optimality = self.certificate.optimality(self.objective) if self.worst_case is None else None
        if optimality is not None:
            lines.insert(2, optimality)
        if self.decision is not None:
            lines += self.decision.sentences(log_odds=self.log_odds)
        if (weights := in_words(self.settings.get("problem", {}).get("weights"))) is not None:
            lines.append(f"the objective is {weights}")
        lines += [f"{name} was left out {why}" for name, why in self.left_out.items()]
        if self.certificate.private is not None:
            lines.append(str(self.certificate.private))
        if self.ledger is not None:
            lines.append(self.ledger.summary(measured=not silent))
        if self.coefficients is not None and "summary" in self.settings:
            lines.append(str(self.coefficients))
        lines += [str(evaluation) for evaluation in self.evaluations.values()]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(str(self))

    def summary(
        self,
        problem: "Problem | None" = None,
        names: Sequence[str] | None = None,
        *,
        errors: str = "hessian",
        clusters: "Mapping[str, Sequence[object]] | None" = None,
    ) -> "CoefficientTable":
        """Return the coefficients with standard errors, tests and figures of the fit; print the table to read it.

        It is one question more to each client, of which the sum over clients is taken; two with HC2 and HC3.

        Args:
            problem: the problem that was solved, with its data; not needed for a run of `foedus run`, or over real
                sites whose plan has a [summary]: these have the table already, in units of the data.
            names: what each number of the model belongs to.
            errors: "hessian", if the model is right; "HC0", "HC1", "HC2" or "HC3", if the variance of a row may be
                another; "cluster", if rows depend on each other.
            clusters: for "cluster", by client, which cluster each of its rows is of.

        Returns:
            The table: for each number its standard error, z or t, p and interval, and odds, rate or hazard ratios; and
            log-likelihood, deviance, dispersion, AIC and BIC. Where terms bind, the errors are those on the face on
            which they do.

        Example:
            >>> import foedus as fd, numpy as np
            >>> X = np.column_stack([np.arange(8.0), np.ones(8)])
            >>> y = np.array([1.0, 2.9, 5.1, 7.0, 9.1, 10.9, 13.0, 15.1])
            >>> problem = fd.Problem([(X, y)], loss=fd.losses.least_squares)
            >>> run = fd.solve(problem, fd.FedGiA(), max_rounds=5000)
            >>> dose = run.summary(problem, ["dose", "(intercept)"])["dose"]
            >>> round(dose.value, 2), round(dose.error, 3)
            (2.01, 0.013)
        """
        if problem is not None:
            from foedus.statistics.coefficients import coefficients

            secure = "secure" in self.settings
            return coefficients(
                problem, self.w, self.multipliers, names=names, errors=errors, clusters=clusters, secure=secure
            )
        if self.coefficients is None:
            raise FoedusError(
                "this run has no table of coefficients; give summary the problem, with its data: "
                "run.summary(problem), or write [summary] into the experiment file of a submitted run."
            )
        if errors not in ("hessian", self.coefficients.errors) or clusters is not None:
            raise FoedusError(
                f"the errors of this run's table are {self.coefficients.errors!r}; write errors = {errors!r} into "
                "[summary] of the experiment file, or give summary the problem."
            )
        return self.coefficients

    def predict(self, X: "Rows") -> np.ndarray:
        """Return the model's answer for each row.

        Args:
            X: a table of numbers (rows, columns), dense or sparse, prepared as the rows of training were. Where the
                run has `rules`, also raw columns by name, as a dict or a data frame; the label is not needed.

        Returns:
            One answer a row. In a classification it is a class: the word that the label has in the data where the run
            has `rules`, else one of `classes` (0 and 1, or -1 and 1). A row is positive if its score xᵀw is above 0;
            where a term on a miss rate or on false alarms chose a threshold, if the score is at least that. In a
            regression the answer is the score itself.

        Example:
            >>> import foedus as fd, numpy as np
            >>> X, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0.0, 0.0, 1.0, 1.0])
            >>> problem = fd.Problem([(X, y)], loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1))
            >>> run = fd.solve(problem)
            >>> run.predict([[-3.0], [0.5]]).tolist()
            [0.0, 1.0]
        """
        return self._predictor().predict(X)

    def predict_proba(self, X: "Rows") -> np.ndarray:
        """Return the probabilities of the negative and of the positive class for each row; logistic loss only.

        Args:
            X: the rows, as for `predict`.

        Returns:
            The probabilities, shape (rows, 2). A threshold that a term chose does not change them.
        """
        return self._predictor().probabilities(X)

    def _predictor(self) -> "Predictor":
        from foedus.statistics.prediction import Predictor
        from foedus.statistics.tally import Rule

        loss = self.settings["problem"].get("loss") or {}
        words = self.rules.labels if self.rules is not None else ()
        rule = Rule() if self.decision is None else self.decision.rule
        vector = np.asarray(self.w) if isinstance(self.w, np.ndarray | jax.Array) else np.zeros((0, 0))
        return Predictor(vector, loss.get("name"), words or self.classes, rule, self.rules)

    def to_frame(self) -> "pandas.DataFrame":
        """Return the history as a pandas table, one row a round; a column of vectors becomes several columns."""
        try:
            import pandas
        except ImportError:
            raise FoedusError("to_frame needs pandas; install it with: pip install 'foedus[files]'.") from None
        columns: dict[str, np.ndarray] = {}
        for name, values in self.history.items():
            flat = np.asarray(values).reshape(len(values), -1) if len(values) else np.zeros((0, 1))
            wide = np.ndim(values) > 1
            columns |= {f"{name}.{j}" if wide else name: flat[:, j] for j in range(flat.shape[1])}
        return pandas.DataFrame(columns, index=pandas.RangeIndex(1, self.rounds + 1, name="round"))

    def save(self, folder: str | Path) -> Path:
        """Write the run into a folder: run.json, history.npz, parameters.npz; each file appears whole or not at all.

        Args:
            folder: where to; it is made if it is missing.

        Returns:
            The folder.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FoedusError(f"cannot make the run folder {folder}: {error.strerror}.") from None
        leaves, _ = jax.tree.flatten(self.w)
        write_whole(folder / "history.npz", pack(self.history, {"schema": SCHEMA}))
        arrays = {f"w{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        arrays |= {f"multiplier.{k}": v for k, v in self.multipliers.items()}
        write_whole(folder / "parameters.npz", pack(arrays, {"schema": SCHEMA, "tree": plain_tree(self.w)}))
        record = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        record["worst_case"] = None if self.worst_case is None else self.worst_case.to_json()
        record["decision"] = None if self.decision is None else self.decision.to_json()
        record["coefficients"] = None if self.coefficients is None else self.coefficients.to_json()
        record["evaluations"] = [evaluation.to_json() for evaluation in self.evaluations.values()]
        for apart in ("w", "history", "multipliers", "ledger", "rules", "plan"):
            del record[apart]
        if self.plan is not None:
            write_whole(folder / PLAN, (json.dumps(self.plan, indent=1) + "\n").encode())
        if self.rules is not None:
            write_whole(folder / RULES, (json.dumps(self.rules.to_json(), indent=1) + "\n").encode())
        if self.ledger is not None:
            self.ledger.save(folder / "ledger.npz")
        record |= {"schema": SCHEMA, "certificate": self.certificate.to_json(), "traffic": vars(self.traffic)}
        write_whole(folder / "run.json", (json.dumps(record, indent=1, default=float) + "\n").encode())
        return folder


def runs_to_frame(runs: "Mapping[str, Run] | Sequence[Run]") -> "pandas.DataFrame":
    """Return the histories of several runs below each other, for plots and tables of pandas.

    Args:
        runs: by name, or a list, whose runs are then numbered.

    Returns:
        A table with the columns `run`, `algorithm` and `round`, and those of the histories; NaN where a run has no such
        column.

    Example:
        >>> import foedus as fd, numpy as np
        >>> problem = fd.Problem([(np.eye(2), np.array([1.0, 2.0]))], loss=fd.losses.least_squares)
        >>> runs = {"long": fd.solve(problem, fd.FedGiA()), "short": fd.solve(problem, fd.FedGiA(), max_rounds=2)}
        >>> frame = fd.runs_to_frame(runs)
        >>> frame.groupby("run")["round"].max()["short"].item()
        2
    """
    by_name = dict(runs) if isinstance(runs, Mapping) else {str(i): run for i, run in enumerate(runs)}
    if not by_name:
        raise FoedusError("runs_to_frame needs at least one run.")
    frames = []
    for name, run in by_name.items():
        frame = run.to_frame().reset_index()
        frame.insert(0, "algorithm", run.settings["algorithm"]["name"])
        frame.insert(0, "run", name)
        frames.append(frame)
    import pandas

    return pandas.concat(frames, ignore_index=True)


def load(folder: str | Path) -> Run:
    """Read a run that `Run.save` wrote.

    Args:
        folder: the folder that the run was saved in.

    Returns:
        The run, equal to the one that was saved.

    Example:
        >>> import tempfile
        >>> import foedus as fd, numpy as np
        >>> problem = fd.Problem([(np.eye(2), np.array([1.0, 2.0]))], loss=fd.losses.least_squares)
        >>> run = fd.solve(problem, fd.FedGiA())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = fd.load(run.save(folder))
        >>> bool(np.all(again.w == run.w)), again.objective == run.objective
        (True, True)
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / "run.json").read_text())
        history, _ = unpack((folder / "history.npz").read_bytes())
        arrays, note = unpack((folder / "parameters.npz").read_bytes())
    except FileNotFoundError as error:
        raise FoedusError(f"{folder} is not a run folder: {Path(error.filename).name} is missing.") from None
    except Exception as error:
        raise FoedusError(f"{folder} cannot be read as a run: {error}.") from None
    if not isinstance(record, dict) or record.pop("schema", None) != SCHEMA:
        raise FoedusError(f"{folder} was written by another version of foedus (expected schema {SCHEMA}).")
    leaves = [arrays[f"w{i}"] for i in range(sum(name.startswith("w") for name in arrays))]
    record["refused"] = tuple(record.get("refused", ()))
    record["classes"] = tuple(record.get("classes", ()))
    record["certificate"] = Certificate.from_json(record["certificate"])
    if record.get("worst_case") is not None:
        from foedus.robust.stress import Stress

        record["worst_case"] = Stress.from_json(record["worst_case"])
    record |= _evidence(record)
    record["traffic"] = Traffic(**record["traffic"])
    multipliers = {name[11:]: value for name, value in arrays.items() if name.startswith("multiplier.")}
    ledger = Ledger.load(folder / "ledger.npz") if (folder / "ledger.npz").exists() else None
    rules = None
    if (folder / RULES).is_file():
        from foedus.data.preprocess import Preprocessing

        rules = Preprocessing.load(folder / RULES)
    w = rebuild(note["tree"], iter(leaves))
    plan = json.loads((folder / PLAN).read_text()) if (folder / PLAN).is_file() else None
    return Run(w=w, history=history, multipliers=multipliers, ledger=ledger, rules=rules, plan=plan, **record)


def _evidence(record: Json) -> Json:
    """The decision, the evaluations and the coefficients of a saved run."""
    decision, evaluations, table = (record.get(key) for key in ("decision", "evaluations", "coefficients"))
    if decision is None and not evaluations and table is None:
        return {"decision": None, "evaluations": {}, "coefficients": None}
    from foedus.statistics.coefficients import CoefficientTable
    from foedus.statistics.evaluate import Evaluation
    from foedus.statistics.rates import Decision

    return {
        "decision": None if decision is None else Decision.from_json(decision),
        "evaluations": {one.source: one for one in map(Evaluation.from_json, evaluations or ())},
        "coefficients": None if table is None else CoefficientTable.from_json(table),
    }


def plain_tree(tree: PyTree) -> PyTree:
    """Return the nesting of a pytree of dicts, lists and tuples as JSON; a leaf is null."""
    if isinstance(tree, dict):
        return {"dict": [[k, plain_tree(tree[k])] for k in sorted(tree)]}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__ if type(tree) in (list, tuple) else "tuple": [plain_tree(v) for v in tree]}
    leaves = jax.tree.leaves(tree)
    return None if len(leaves) == 1 else {"list": [None] * len(leaves)}


def rebuild(nesting: PyTree, leaves: Iterator[np.ndarray]) -> PyTree:
    """Return the pytree with this nesting and these leaves in order: the inverse of `plain_tree`."""
    if nesting is None:
        return next(leaves)
    ((kind, parts),) = nesting.items()
    if kind == "dict":
        return {k: rebuild(part, leaves) for k, part in parts}
    values = [rebuild(part, leaves) for part in parts]
    return tuple(values) if kind == "tuple" else values


def describe(thing: object) -> Any:
    """Return any settings object in words and numbers that JSON can hold; functions by their qualified name."""
    if isinstance(thing, str | int | float | bool | type(None)):
        return thing
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = {f.name: describe(getattr(thing, f.name)) for f in dataclasses.fields(thing) if f.repr}
        return {"name": type(thing).__name__} | fields
    if isinstance(thing, dict):
        return {str(k): describe(v) for k, v in thing.items()}
    if isinstance(thing, list | tuple):
        return [describe(v) for v in thing]
    if isinstance(thing, np.ndarray | jax.Array):
        return {"array": list(thing.shape), "sum": float(np.sum(np.asarray(thing, dtype=float)))}
    if callable(thing) and hasattr(thing, "__qualname__"):
        return f"{thing.__module__}.{thing.__qualname__}"
    return repr(thing) if type(thing).__repr__ is not object.__repr__ else type(thing).__name__


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the numbers were computed with."""
    table = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("foedus", "jax", "numpy", "scikit-learn"):
        try:
            table[package] = version(package)
        except PackageNotFoundError:
            table[package] = "not installed"
    return table
