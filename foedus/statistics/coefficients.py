"""What the model is: its coefficients with standard errors, in the manner of a table of statsmodels.

With the bread K and the meat M of `sandwich.py`, summed over all rows, the covariance of the answer w is K⁻¹ M K⁻¹.
With the model's own variance, rows of equal weight and neither penalty nor caps it is the inverse of the information,
(XᵀDX)⁻¹, as statsmodels has it. Sites of different sizes have rows of different weights where each site weighs the
same, and a penalty is part of K and not of M: the errors are those of the estimate that was made, around the value that
it aims at.

Caps that bind, equalities, and coordinates that a regulariser holds leave a face of directions Z, on which the answer
moves as the rows vary; there the covariance is Z(ZᵀKZ)⁻¹ZᵀMZ(ZᵀKZ)⁻¹Zᵀ. It takes the face as given: that caps are
measured on the same rows is not counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist

import numpy as np

from foedus.base.engine import float64
from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.base.notebook import latex_table, text_table
from foedus.base.pytrees import PyTree
from foedus.base.quantities import short
from foedus.problem.likelihoods import Likelihood
from foedus.problem.losses import Loss
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.statistics.sandwich import CLUSTER, AtModel, ask, check_terms
from foedus.statistics.survival.cox import Test, p_text
from foedus.statistics.survival.stratified import square
from foedus.sums.questions import Here

FLAT = 1e-10  # of the largest eigenvalue: directions in which the rows say nothing
ON_FACE = 1e-12  # of the largest eigenvalue: directions in which what binds leaves no room
EVEN = 1e-9  # by which the weights of rows may differ and count as equal


@dataclass(frozen=True)
class Coefficient:
    """One number of the model in units of the data, its standard error, and how far it is from 0.

    `error` is NaN where the number is held: a regulariser keeps it at 0, or the caps leave it no room.
    """

    name: str
    value: float
    error: float
    z: float
    p: float
    low: float
    high: float


@dataclass(frozen=True)
class Figures:
    """How well a model fits the rows that it was fitted to.

    Attributes:
        rows: how many they are.
        free: the numbers of the model that are not held.
        deviance: twice the distance to a model with a number of its own for each row.
        dispersion: φ, Pearson's χ² over rows − free; 1 where the family has none.
        pearson: Pearson's χ².
        log_likelihood: None where it has no closed form, or where a penalty, a cap or unequal weights of rows decided.
    """

    rows: int
    free: int
    deviance: float
    dispersion: float
    pearson: float
    log_likelihood: float | None

    @property
    def aic(self) -> float | None:
        """−2 log L + 2·free; φ is not counted among the numbers."""
        return None if self.log_likelihood is None else -2.0 * self.log_likelihood + 2.0 * self.free

    @property
    def bic(self) -> float | None:
        """−2 log L + free·log(rows)."""
        return None if self.log_likelihood is None else -2.0 * self.log_likelihood + self.free * math.log(self.rows)

    def __str__(self) -> str:
        parts = [f"{self.rows:,} rows", f"deviance {self.deviance:.6g}", f"dispersion {self.dispersion:.4g}"]
        if self.log_likelihood is not None:
            parts += [f"log-likelihood {self.log_likelihood:.6g}", f"AIC {self.aic:.6g}", f"BIC {self.bic:.6g}"]
        return ", ".join(parts).replace("-", "−").replace("log−", "log-")


@dataclass(frozen=True)
class CoefficientTable:
    """The coefficients of a model; print it for a table.

    Attributes:
        rows: one for each number of the model.
        ratio: what exp(coefficient) is called, as "odds ratio" with the logistic loss; empty where it is nothing.
        binding: how many terms bind; the errors are then those on the face on which they do.
        notes: sentences on what the errors assume.
        errors: how they were computed: "hessian", "HC0" to "HC3", or "cluster".
        covariance: of the coefficients, row by row; 0 in what is held.
        figures: how well the model fits.
        clusters: how many clusters of rows there are, where errors are "cluster".
        equality_test: the score test of what holds the coefficients, where equalities alone bind.
        freedom: the degrees of freedom of t; None where z is used.
    """

    rows: tuple[Coefficient, ...]
    ratio: str
    binding: int
    notes: tuple[str, ...] = ()
    errors: str = "hessian"
    covariance: tuple[tuple[float, ...], ...] = ()
    figures: Figures | None = None
    clusters: int = 0
    equality_test: Test | None = None
    freedom: float | None = None

    def __getitem__(self, name: str) -> Coefficient:
        return self.rows[self._place(name)]

    def _place(self, name: str) -> int:
        names = [row.name for row in self.rows]
        if name not in names:
            raise KeyError(f"there is no coefficient {name!r}.{did_you_mean(name, names)}")
        return names.index(name)

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of the columns."""
        letter = "z" if self.freedom is None else "t"
        return ("", "coefficient", "std. error", letter, "p", "95 %", *((self.ratio, "95 %") if self.ratio else ()))

    def cells(self, row: Coefficient) -> tuple[str, ...]:
        """Return a row of the table as text."""
        if math.isnan(row.error):
            return (
                row.name,
                _text(row.value),
                "–",
                "–",
                "–",
                "held",
                *((_text(_exp(row.value)), "") if self.ratio else ()),
            )
        between = f"{_text(row.low, 3)} to {_text(row.high, 3)}"
        ratios = (_text(_exp(row.value)), f"{_text(_exp(row.low), 3)} to {_text(_exp(row.high), 3)}")
        z = f"{row.z:.2f}".replace("-", "−")
        own = ratios if self.ratio else ()
        return (row.name, _text(row.value), _text(row.error), z, p_text(row.p), between, *own)

    def wald(self, *names: str) -> Test:
        """Return Wald's test that all of these coefficients are 0.

        Args:
            names: of coefficients; all but the intercept when left out.

        Returns:
            The test, by the covariance of the table: robust where its errors are.
        """
        places = [self._place(n) for n in names or [row.name for row in self.rows if row.name != "(intercept)"]]
        places = [j for j in places if not math.isnan(self.rows[j].error)]
        if not places:
            raise FoedusError("no coefficient that could be tested is free.")
        value = np.array([self.rows[j].value for j in places])
        covariance = np.array(self.covariance)[np.ix_(places, places)]
        return Test(float(value @ np.linalg.solve(covariance, value)), len(places))

    def likelihood_ratio(self, smaller: "CoefficientTable") -> Test:
        """Return the likelihood-ratio test of a smaller model, fitted to the same rows.

        Args:
            smaller: the table of a model whose numbers are among this one's, or of this one under equalities.

        Returns:
            The test that the smaller model will do.
        """
        mine, other = self.figures, smaller.figures
        if mine is None or other is None or mine.log_likelihood is None or other.log_likelihood is None:
            raise FoedusError("a likelihood-ratio test needs two models without penalty, caps and unequal weights.")
        if mine.rows != other.rows:
            raise FoedusError(
                f"the models were fitted to {mine.rows} and {other.rows} rows; expected the same rows for both."
            )
        if mine.free <= other.free:
            raise FoedusError(f"the smaller model has {other.free} free numbers, and the larger {mine.free}.")
        return Test(2.0 * (mine.log_likelihood - other.log_likelihood), mine.free - other.free)

    def score(self) -> Test:
        """Return the score test of the equalities under which this model was fitted; no larger model is needed."""
        if self.equality_test is None:
            raise FoedusError(
                "a score test is about the equalities that hold a model; fit the smaller model as the larger one with "
                "fd.constraints.Linear(..., kind='==') and no other terms."
            )
        return self.equality_test

    def __str__(self) -> str:
        figures = [] if self.figures is None else [str(self.figures) + "."]
        return "\n".join([*text_table(self.titles, [self.cells(row) for row in self.rows]), *figures, *self.notes])

    __repr__ = __str__

    def to_latex(self) -> str:
        """Return the table as a `tabular` of LaTeX with the rules of booktabs."""
        return latex_table(self.titles, [self.cells(row) for row in self.rows])

    def to_json(self) -> Json:
        """Return the table as JSON holds it; null stands for NaN."""
        rows = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in vars(row).items()}
            for row in self.rows
        ]
        record = asdict(self) | {"rows": rows, "notes": list(self.notes)}
        return record | {"covariance": [list(row) for row in self.covariance]}

    @staticmethod
    def from_json(record: Json) -> "CoefficientTable":
        """Read what `to_json` wrote."""
        rows = []
        for row in record["rows"]:
            figures = {k: math.nan if v is None else float(v) for k, v in row.items() if k != "name"}
            rows.append(Coefficient(row["name"], **figures))
        own = dict(record) | {"rows": tuple(rows), "notes": tuple(record["notes"])}
        own["covariance"] = tuple(tuple(row) for row in record["covariance"])
        own["figures"] = None if record["figures"] is None else Figures(**record["figures"])
        own["equality_test"] = None if record["equality_test"] is None else Test(**record["equality_test"])
        return CoefficientTable(**own)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _text(value: float, digits: int = 4) -> str:
    return short(value, digits).replace("-", "−")


@float64()
def coefficients(
    problem: Problem,
    w: PyTree,
    multipliers: Mapping[str, np.ndarray],
    *,
    names: Sequence[str] | None = None,
    units: np.ndarray | None = None,
    errors: str = "hessian",
    clusters: Mapping[str, Sequence[object]] | None = None,
    secure: bool = False,
) -> CoefficientTable:
    """Return the coefficients of a linear model with their standard errors.

    Args:
        problem: the problem that the model was trained on, with its data.
        w: the model.
        multipliers: those of the answer, by scope, as `run.multipliers`.
        names: what each number of the model belongs to.
        units: a matrix that turns the model's numbers into those in units of the data; the identity when left out.
        errors: "hessian", if the model is right; "HC0" to "HC3", if it need not be; "cluster", if rows belong together.
        clusters: by client, for each of its rows which cluster it is of; a cluster lies within a client.
        secure: whether sums alone are seen.

    Returns:
        The table, one row for each number.
    """
    if problem.terms.loss is None and isinstance(problem.terms.objective, Likelihood):
        problem = problem.over(w)
    terms, w = problem.terms, np.asarray(problem.terms.shape.ravel(w), dtype=float)
    check(terms, multipliers, errors)
    own = multipliers.get("local", np.zeros((terms.clients, terms.rows[0])))
    arrays = {k: np.asarray(v) for k, v in problem.data.items()}
    if errors == "cluster" and CLUSTER not in arrays:
        arrays[CLUSTER] = _codes(problem, clusters)
    sites = {name: AtModel(Data({k: v[i] for k, v in arrays.items()}), own[i]) for i, name in enumerate(problem.names)}
    nu = np.asarray(multipliers.get("coupled", np.zeros(terms.rows[2])))
    total = ask(Here(sites, secure), terms, w, nu, errors)
    return table_of(terms, total, w, nu, names=names, units=units, errors=errors)


@float64()
def rise_of(problem: Problem, w: np.ndarray, secure: bool = False) -> float:
    """Return the derivative of the log-likelihood in the dispersion α of a negative binomial model."""
    none = np.zeros(0)
    sites = {name: AtModel(problem.client(i), none) for i, name in enumerate(problem.names)}
    return float(ask(Here(sites, secure), replace(problem.terms, constraints=()), w, none, "hessian")["figures"][3])


def _codes(problem: Problem, clusters: Mapping[str, Sequence[object]] | None) -> np.ndarray:
    """The clusters' numbers, filled up as the clients' rows are."""
    if clusters is None:
        raise FoedusError("errors = 'cluster' needs clusters=: by client, for each of its rows which cluster it is of.")
    codes = np.zeros(np.shape(problem.data["weight"]))
    for i, (name, count) in enumerate(zip(problem.names, problem.counts, strict=True)):
        own = np.asarray(clusters.get(name, ()))
        if own.shape != (count,):
            raise FoedusError(
                f"client {name!r}: clusters must have one entry for each of {count} rows. Got {own.shape}."
            )
        codes[i, :count] = np.unique(own, return_inverse=True)[1]
    return codes


def table_of(
    terms: Terms,
    total: Mapping[str, np.ndarray],
    w: np.ndarray,
    nu: np.ndarray,
    *,
    names: Sequence[str] | None = None,
    units: np.ndarray | None = None,
    errors: str = "hessian",
) -> CoefficientTable:
    """Return the table of a model from the sums over all sites that `sandwich.ask` returns; no row is needed.

    Args:
        terms: of the problem.
        total: the sums.
        w: the model.
        nu: the multipliers of coupled rows.
        names: what each number of the model belongs to.
        units: a matrix that turns the model's numbers into those in units of the data; the identity when left out.
        errors: as they were asked for.
    """
    loss, w, dim = terms.loss or terms.objective, np.asarray(w, dtype=float), terms.dim
    assert isinstance(loss, Loss | Likelihood)
    kinks = terms.regularizer.kinks(w)
    if kinks is None:
        raise FoedusError(f"standard errors are not known with the regulariser {terms.regularizer.name}.")
    at_zero, curvature = kinks
    K, model = square(total["bread"], dim) + np.diag(curvature), square(total["model"], dim)
    coupled = np.asarray(total["coupled"])[np.asarray(nu) > 0]
    lengths = np.linalg.norm(coupled, axis=1, keepdims=True)
    coupled = coupled / np.where(lengths > 0, lengths, 1.0)
    face = square(total["face"], dim) + coupled.T @ coupled + np.diag(at_zero.astype(float))
    binding = int(total["binding"]) + len(coupled) + int(np.sum(at_zero))
    rows, (deviance, pearson, *sums) = int(total["rows"]), np.asarray(total["figures"], dtype=float)
    inverse, reachable = _on_face(K, face)
    free = reachable.shape[1]
    dispersion = pearson / max(rows - free, 1) if loss.has_dispersion else 1.0
    meat = dispersion * model if errors == "hessian" else square(total["meat"], dim)
    if errors == "HC1":
        meat = meat * rows / max(rows - free, 1)
    groups = int(total["clusters"]) if errors == "cluster" else 0
    if errors == "cluster":
        if groups < 2:
            raise FoedusError(f"errors = 'cluster' needs at least 2 clusters. Got {groups} instead.")
        meat = meat * groups / (groups - 1) * (rows - 1) / max(rows - free, 1)
    covariance = inverse @ meat @ inverse
    T = np.eye(dim) if units is None else units
    value, covariance = T @ w, T @ covariance @ T.T
    error = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    # a direction that the face leaves no room for, or about which no row says anything, has no error
    room = np.sum((T @ reachable) ** 2, axis=1) > FLAT * np.sum(T**2, axis=1)
    error = np.where(room & (error > 0), error, math.nan)
    freedom = None
    if loss.has_dispersion:
        freedom = float(groups - 1 if groups else rows - free)
    labels = [f"w[{j}]" for j in range(dim)] if names is None else list(names)
    table = tuple(_row(name, v, e, freedom) for name, v, e in zip(labels, value.tolist(), error.tolist(), strict=True))
    whole, squares = np.asarray(total["shares"])
    plain = terms.penalty is None and terms.regularizer.vanishes
    equalities = binding == int(total["held"])
    even = rows * squares <= whole**2 * (1 + EVEN)
    is_fit = plain and equalities and even
    likelihood = loss.log_likelihood(np.array(sums), rows, dispersion) if is_fit else math.nan
    figures = Figures(rows, free, deviance, dispersion, pearson, likelihood if math.isfinite(likelihood) else None)
    test = None
    if plain and equalities and binding:
        test = _score_test(K, dispersion * model, np.asarray(total["slope"]), face)
    notes = tuple(_notes(terms, binding, errors, groups))
    return CoefficientTable(
        table,
        loss.ratio,
        binding,
        notes,
        errors,
        tuple(map(tuple, covariance.tolist())),
        figures,
        groups,
        test,
        freedom,
    )


def check(terms: Terms, multipliers: Mapping[str, np.ndarray], errors: str = "hessian") -> None:
    """Raise where standard errors are not known."""
    if any(np.any(np.isnan(values)) for values in multipliers.values()):
        raise FoedusError("standard errors need the multipliers, which the sites of this run keep to themselves.")
    if np.any(multipliers.get("global", np.zeros(0)) != 0):
        raise FoedusError("standard errors are not known where a constraint on the server's own data binds.")
    check_terms(terms, errors)


def table_from(
    names: Sequence[str], value: np.ndarray, covariance: np.ndarray, ratio: str, freedom: float | None
) -> CoefficientTable:
    """Return the table of coefficients whose covariance is known."""
    errors = np.sqrt(np.diag(covariance)).tolist()
    rows = tuple(_row(n, v, e, freedom) for n, v, e in zip(names, value.tolist(), errors, strict=True))
    matrix = tuple(map(tuple, covariance.tolist()))
    return CoefficientTable(rows, ratio, 0, (ASSUME["hessian"],), covariance=matrix, freedom=freedom)


def _row(name: str, value: float, error: float, freedom: float | None) -> Coefficient:
    z = value / error
    if freedom is None:
        tail, q = math.erfc(abs(z) / math.sqrt(2.0)) / 2.0, NormalDist().inv_cdf(0.975)
    else:
        from scipy.special import stdtr, stdtrit  # here, where it is used: SciPy takes long to import

        tail, q = float(stdtr(freedom, -abs(z))), float(stdtrit(freedom, 0.975))
    return Coefficient(name, value, error, z, 2 * tail, value - q * error, value + q * error)


ASSUME = {
    "hessian": "Standard errors are from the Hessian at the answer: they assume that the model is right.",
    "cluster": "Standard errors are robust: rows of one cluster may depend on each other, and clusters may not.",
}


def _notes(terms: Terms, binding: int, errors: str, groups: int) -> list[str]:
    robust = f"Standard errors are robust ({errors}): the variance of a row need not be what the model says."
    notes = [ASSUME.get(errors, robust) + (f" There are {groups} clusters." if groups else "")]
    if terms.penalty is not None or not terms.regularizer.vanishes:
        notes.append(
            "A penalty draws the coefficients towards 0; the errors are around what the penalised fit aims at."
        )
    if binding:
        what = "1 constraint binds" if binding == 1 else f"{binding} constraints bind"
        notes.append(f"{what}: the errors are those with the binding constraints taken as given.")
    return notes


def _on_face(K: np.ndarray, face: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of K on the face, and a basis of the directions that it has and the rows speak of."""
    scale = 1.0 / np.sqrt(np.where(np.diag(K) > 0, np.diag(K), 1.0))
    K, Z = K * scale[:, None] * scale, np.eye(len(K))
    if np.any(face):
        sizes, directions = np.linalg.eigh(_unit(face * scale[:, None] * scale))
        Z = directions[:, sizes <= ON_FACE]
    values, vectors = np.linalg.eigh(Z.T @ K @ Z)
    steep = values > FLAT * max(float(np.max(values, initial=0.0)), 1e-300)
    basis = Z @ vectors[:, steep]
    inverse = (basis / values[steep]) @ basis.T
    return inverse * scale[:, None] * scale, scale[:, None] * basis


def _unit(matrix: np.ndarray) -> np.ndarray:
    return matrix / max(float(np.max(np.diag(matrix))), 1e-300)


def _score_test(K: np.ndarray, meat: np.ndarray, slope: np.ndarray, face: np.ndarray) -> Test | None:
    """The score test of what holds w: how far the slope there is from what chance makes it."""
    inverse, reachable = _on_face(K, np.zeros_like(K))
    if reachable.shape[1] < len(K):
        return None
    sizes, directions = np.linalg.eigh(_unit(face))
    normal = directions[:, sizes > ON_FACE]
    step = normal.T @ inverse @ slope
    spread = normal.T @ inverse @ meat @ inverse @ normal
    return Test(float(step @ np.linalg.solve(spread, step)), normal.shape[1])
