"""What the model is: its coefficients with standard errors, in the manner of a table of statsmodels.

At the answer w the Lagrangian of the problem is Σ b_r ℓ(x_rᵀw, y_r) + penalty + terms of w alone, where b_r is the
weight of row r: its share of the objective, plus the multipliers of the caps that it counts in. With

    K = Σ b_r ℓ'' x xᵀ + the penalty's second derivatives,     M = Σ b_r² v_r x xᵀ,

and v the variance of ℓ' that the model itself implies (ℓ'' for the logistic loss, the residuals' variance for least
squares), the covariance of w is K⁻¹ M K⁻¹. With rows of equal weight and neither penalty nor caps it is the inverse of
the information, (XᵀDX)⁻¹, as statsmodels has it. Sites of different sizes have rows of different weights, and a penalty
is part of K and not of M: the errors are those of the estimate that was made, around the value that it aims at.

Caps that bind, equalities, and coordinates that a regulariser holds leave a face of directions Z, on which the answer
moves as the rows vary; there the covariance is Z(ZᵀKZ)⁻¹ZᵀMZ(ZᵀKZ)⁻¹Zᵀ. It takes the face as given: that caps are
measured on the same rows is not counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import jax.numpy as jnp
import numpy as np

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.notebook import text_table
from foedus.base.quantities import short
from foedus.numerics.interpreter.dispatch import play
from foedus.numerics.interpreter.threads import threads_for
from foedus.problem.constraints import Linear, LossRows, NormBall
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms

BAND = 4096  # rows of a product at a time
MOST = 200  # coefficients up to which the errors are computed: a matrix is inverted
FLAT = 1e-10  # of the largest eigenvalue: directions in which the rows say nothing


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
class CoefficientTable:
    """The coefficients of a model; print it for a table.

    Attributes:
        rows: one for each number of the model.
        odds: whether exp(coefficient) is an odds ratio, as it is with the logistic loss.
        binding: how many terms bind; the errors are then those on the face on which they do.
        notes: sentences on what the errors assume.
    """

    rows: tuple[Coefficient, ...]
    odds: bool
    binding: int
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Coefficient:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of the columns."""
        return ("", "coefficient", "std. error", "z", "p", "95 %", *(("odds ratio", "95 %") if self.odds else ()))

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
                *((_text(_exp(row.value)), "") if self.odds else ()),
            )
        p = "< 0.001" if row.p < 0.001 else f"{row.p:.3f}"
        between = f"{_text(row.low, 3)} to {_text(row.high, 3)}"
        odds = (_text(_exp(row.value)), f"{_text(_exp(row.low), 3)} to {_text(_exp(row.high), 3)}") if self.odds else ()
        return (row.name, _text(row.value), _text(row.error), f"{row.z:.2f}".replace("-", "−"), p, between, *odds)

    def __str__(self) -> str:
        return "\n".join([*text_table(self.titles, [self.cells(row) for row in self.rows]), *self.notes])

    __repr__ = __str__

    def to_json(self) -> Json:
        """Return the table as JSON holds it; null stands for NaN."""
        rows = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in vars(row).items()}
            for row in self.rows
        ]
        return {"rows": rows, "odds": self.odds, "binding": self.binding, "notes": list(self.notes)}

    @staticmethod
    def from_json(record: Json) -> "CoefficientTable":
        """Read what `to_json` wrote."""
        rows = []
        for row in record["rows"]:
            figures = {k: math.nan if v is None else float(v) for k, v in row.items() if k != "name"}
            rows.append(Coefficient(row["name"], **figures))
        return CoefficientTable(tuple(rows), record["odds"], record["binding"], tuple(record["notes"]))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _text(value: float, digits: int = 4) -> str:
    return short(value, digits).replace("-", "−")


@float64()
def coefficients(
    problem: Problem,
    w: np.ndarray,
    multipliers: Mapping[str, np.ndarray],
    *,
    names: Sequence[str] | None = None,
    units: np.ndarray | None = None,
) -> CoefficientTable:
    """Return the coefficients of a linear model with their standard errors.

    Args:
        problem: the problem that the model was trained on, with its data.
        w: the model.
        multipliers: those of the answer, by scope, as `run.multipliers`.
        names: what each number of the model belongs to.
        units: a matrix that turns the model's numbers into those in units of the data; the identity when left out.

    Returns:
        The table, one row for each number.
    """
    terms = problem.terms
    check(terms, multipliers)
    w = np.asarray(w, dtype=float)
    K, M, face, count = _matrices(problem, w, multipliers)
    covariance, reachable = _on_face(K, M, face)
    T = np.eye(len(w)) if units is None else units
    value = T @ w
    error = np.sqrt(np.maximum(np.diag(T @ covariance @ T.T), 0.0))
    # a direction that the face leaves no room for, or about which no row says anything, has no error
    room = np.sum((T @ reachable) ** 2, axis=1) > FLAT * np.sum(T**2, axis=1)
    error = np.where(room & (error > 0), error, math.nan)
    rows = int(sum(np.asarray(problem.counts)))
    assert terms.loss is not None
    freedom = rows - reachable.shape[1] if terms.loss.quadratic else math.inf
    labels = [f"w[{j}]" for j in range(len(w))] if names is None else list(names)
    table = tuple(_row(name, v, e, freedom) for name, v, e in zip(labels, value.tolist(), error.tolist(), strict=True))
    return CoefficientTable(table, terms.loss.log_odds, count, tuple(_notes(terms, count)))


def check(terms: Terms, multipliers: Mapping[str, np.ndarray]) -> None:
    """Raise where standard errors are not known."""
    if any(np.any(np.isnan(values)) for values in multipliers.values()):
        raise FoedusError("standard errors need the multipliers, which the sites of this run keep to themselves.")
    if np.any(multipliers.get("global", np.zeros(0)) != 0):
        raise FoedusError("standard errors are not known where a constraint on the server's own data binds.")
    if terms.loss is None or not (terms.loss.likelihood or terms.loss.quadratic):
        raise FoedusError("standard errors are known for the logistic loss, for Poisson's and for least squares.")
    if terms.dim > MOST:
        raise FoedusError(f"standard errors are computed for models of at most {MOST} numbers. Got {terms.dim}.")


def _row(name: str, value: float, error: float, freedom: float) -> Coefficient:
    z = value / error
    if math.isinf(freedom):
        tail, q = math.erfc(abs(z) / math.sqrt(2.0)) / 2.0, NormalDist().inv_cdf(0.975)
    else:
        from scipy.special import stdtr, stdtrit  # here, where it is used: SciPy takes long to import

        tail, q = float(stdtr(freedom, -abs(z))), float(stdtrit(freedom, 0.975))
    return Coefficient(name, value, error, z, 2 * tail, value - q * error, value + q * error)


def _notes(terms: Terms, binding: int) -> list[str]:
    notes = ["Standard errors are from the Hessian at the answer: they assume that the model is right."]
    if terms.penalty is not None or not terms.regularizer.vanishes:
        notes.append(
            "A penalty draws the coefficients towards 0; the errors are around what the penalised fit aims at."
        )
    if binding:
        what = "1 constraint binds" if binding == 1 else f"{binding} constraints bind"
        notes.append(f"{what}: the errors are those with the binding constraints taken as given.")
    return notes


def _matrices(
    problem: Problem, w: np.ndarray, multipliers: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """K, M, the gradients of what binds (one in each row), and how many terms bind."""
    terms, dim = problem.terms, len(w)
    K, M = np.zeros((dim, dim)), np.zeros((dim, dim))
    binding: list[np.ndarray] = []
    own = multipliers.get("local", np.zeros((terms.clients, terms.rows[0])))
    common = multipliers.get("coupled", np.zeros(terms.rows[2]))
    coupled = np.zeros((terms.rows[2], dim))
    squares, rows = 0.0, 0
    for i in range(terms.clients):
        data = Data({k: np.asarray(v)[i] for k, v in problem.data.items()})
        X, real = np.asarray(data["x"]), np.asarray(data["weight"]) > 0
        slope, bend = _derivatives(terms, X @ w, np.asarray(data["y"]))
        share = np.asarray(play(terms.share, data)) / terms.clients
        weight = share.copy()
        place = {"local": 0, "coupled": 0}
        for c in (c for c in terms.constraints if c.scope != "global"):
            mu = (own[i] if c.scope == "local" else common / terms.clients)[place[c.scope] :]
            gradients, second, more = _rows_of(c, terms, data, X, w, slope, bend)
            k = len(gradients)
            weight = weight + mu[:k] @ more if len(more) else weight
            K += np.tensordot(mu[:k], second, axes=1) if len(second) else 0.0
            if c.scope == "coupled":
                coupled[place["coupled"] : place["coupled"] + k] += gradients / terms.clients
            else:
                binding += [g for g, m in zip(gradients, mu[:k], strict=True) if m > 0 or c.equality]
            place[c.scope] += k
        with threads_for(dim):
            mine = _gram(X, weight * bend)
            K += mine
            # where every row weighs the same, the second matrix is a multiple of the first
            least, most = float(np.min(weight[real])), float(np.max(weight[real]))
            M += most * mine if least == most else _gram(X, weight**2 * bend)
        if terms.penalty is not None:
            K += np.diag(np.asarray(terms.penalty.bend(jnp.asarray(w), data.count))) / terms.clients
        squares, rows = squares + float(np.sum(slope[real] ** 2)), rows + int(real.sum())
    binding += [g for g, m in zip(coupled, common, strict=True) if m > 0]
    count = len(binding)
    if terms.loss is not None and terms.loss.quadratic:
        M *= squares / max(rows - dim, 1)
    K += _curvature_of_regularizer(terms, w, binding)
    return K, M, np.array(binding).reshape(-1, dim), count


def _gram(X: np.ndarray, d: np.ndarray) -> np.ndarray:
    """XᵀDX, a band of rows after the other: the product of X and d would be as large as X."""
    bands = [slice(start, start + BAND) for start in range(0, len(X), BAND)]
    return sum(((X[band] * d[band, None]).T @ X[band] for band in bands), np.zeros((X.shape[1], X.shape[1])))


def _derivatives(terms: Terms, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ℓ' and ℓ'' of each row."""
    assert terms.loss is not None
    return np.asarray(play(terms.loss.slope, z, y)), np.asarray(play(terms.loss.bend, z, y))


def _rows_of(
    c: object, terms: Terms, data: Data, X: np.ndarray, w: np.ndarray, slope: np.ndarray, bend: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of a constraint's rows at one site, their own second derivatives, and how they weigh the losses."""
    dim = len(w)
    if isinstance(c, LossRows):
        if c.loss is not None and c.loss != terms.loss:
            raise FoedusError("standard errors are not known with a cap on another loss than the problem's.")
        weights = np.asarray(c.weights(data))
        return (weights * slope) @ X, np.zeros((0, dim, dim)), weights
    if isinstance(c, Linear):
        matrix = np.asarray(data[f"{c.key}.C"])
        return matrix, np.zeros((0, dim, dim)), np.zeros((0, len(bend)))
    if isinstance(c, NormBall):
        return 2.0 * w[None, :], 2.0 * np.eye(dim)[None], np.zeros((0, len(bend)))
    raise FoedusError(f"standard errors are not known with a {type(c).__name__} constraint.")


def _curvature_of_regularizer(terms: Terms, w: np.ndarray, binding: list[np.ndarray]) -> np.ndarray:
    """The second derivatives of the regulariser; coordinates that it holds at 0 are added to what binds."""
    h = terms.regularizer
    kinks = h.kinks(w)
    if kinks is None:
        raise FoedusError(f"standard errors are not known with the regulariser {h.name}.")
    at_zero, curvature = kinks
    binding += list(np.eye(len(w))[at_zero])
    return np.diag(curvature)


def _on_face(K: np.ndarray, M: np.ndarray, binding: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The covariance on the face, and an orthonormal basis of the directions that it has and the rows speak of."""
    scale = 1.0 / np.sqrt(np.where(np.diag(K) > 0, np.diag(K), 1.0))
    K, M = K * scale[:, None] * scale, M * scale[:, None] * scale
    Z = np.eye(len(K))
    if len(binding):
        size = np.linalg.norm(binding * scale, axis=1, keepdims=True)
        _, s, rows = np.linalg.svd(binding * scale / np.where(size > 0, size, 1.0))
        Z = rows[int(np.sum(s > 1e-9)) :].T
    values, vectors = np.linalg.eigh(Z.T @ K @ Z)
    steep = values > FLAT * max(float(np.max(values, initial=0.0)), 1e-300)
    basis = Z @ vectors[:, steep]
    inverse = (basis / values[steep]) @ basis.T
    return (inverse @ M @ inverse) * scale[:, None] * scale, scale[:, None] * basis
