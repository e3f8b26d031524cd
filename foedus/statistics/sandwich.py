"""What standard errors are made of, as one question about a model: the bread, the meat, and sums of a fit's figures.

At the answer w the Lagrangian of the problem is Σ b_r ℓ(x_rᵀw, y_r) + penalty + terms of w alone, where b_r is the
weight of row r: its share of the objective, plus the multipliers of the caps that it counts in. A site sends, summed
over its rows,

    the bread   K = Σ b_r c_r x xᵀ + the second derivatives of penalty and terms, where c = ℓ'', or its average if the
                model is right, as tables of generalised linear models have it where they assume that it is
    the meat    M = Σ b_r² v_r x xᵀ, v that average for a model that is right; v = ℓ'² for one that need not be, with a
                factor for the row's leverage in HC2 and HC3; or Σ s sᵀ over clusters of rows, where s is the sum of
                b_r ℓ' x in a cluster
    the face    Σ g gᵀ over its rows that bind, each g of length 1: the directions in which w cannot move
    figures     the number of rows, the deviance, Pearson's residuals, and what a log-likelihood is made of.

The leverage of a row needs the bread of all sites, so HC2 and HC3 take a second question.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.numerics.interpreter.dispatch import play
from foedus.numerics.interpreter.threads import threads_for
from foedus.problem.constraints import Linear, LossRows, NormBall
from foedus.problem.likelihoods import Likelihood
from foedus.problem.terms import Constraint, Data, Terms
from foedus.statistics.survival.stratified import halves, reals, square, triangle, wholes
from foedus.sums.questions import Question, Sites

BAND = 4096  # rows of a product at a time
MOST = 200  # coefficients up to which the errors are computed: a matrix is inverted
LEVERED = ("HC2", "HC3")
ERRORS = ("hessian", "HC0", "HC1", *LEVERED, "cluster")
CLUSTER = "cluster"  # the array of a client's data that says which rows belong together
ROUNDING = 1e-9  # of the bread's size: by how much a site's own part may seem to exceed the sum


@dataclass(frozen=True, eq=False)
class AtModel:
    """A site's data, and the multipliers of its own rows."""

    data: Data
    mu: np.ndarray | jax.Array


def check_terms(terms: Terms, errors: str = "hessian") -> None:
    """Raise where the standard errors of a model are not known."""
    if errors not in ERRORS:
        raise FoedusError(f"errors must be one of {', '.join(map(repr, ERRORS))}. Got {errors!r} instead.")
    if terms.loss is None and isinstance(terms.objective, Likelihood):
        if errors in LEVERED or any(not isinstance(c, Linear | NormBall) for c in terms.constraints):
            raise FoedusError(
                f"the standard errors of {terms.objective.__name__} are known without caps, and without HC2 and HC3."
            )
    elif terms.loss is None or not terms.loss.likelihood:
        raise FoedusError(
            "standard errors are known for losses that are likelihoods: least_squares, logistic, probit, cloglog, "
            "poisson, negative_binomial, gamma and tweedie; and for fd.likelihoods."
        )
    if terms.dim > MOST:
        raise FoedusError(f"standard errors are computed for models of at most {MOST} numbers. Got {terms.dim}.")
    for c in terms.constraints:
        if isinstance(c, LossRows) and c.loss is not None and c.loss != terms.loss:
            raise FoedusError("standard errors are not known with a cap on another loss than the problem's.")
        if not isinstance(c, LossRows | Linear | NormBall):
            raise FoedusError(f"standard errors are not known with a {type(c).__name__} constraint.")
    if terms.regularizer.kinks(np.zeros(terms.dim)) is None:
        raise FoedusError(f"standard errors are not known with the regulariser {terms.regularizer.name}.")


@dataclass(frozen=True, eq=False)
class Sandwich(Question):
    """What do a site's rows add to the standard errors of this model?

    Args:
        terms: of the problem.
        w: the model.
        nu: the multipliers of coupled rows.
        errors: one of ERRORS.
        bread: that of all sites, where leverages are asked for; the answer is then the meat alone.
    """

    kind: ClassVar[str] = "errors"
    words: ClassVar[int | None] = 2
    terms: Terms
    w: np.ndarray | jax.Array
    nu: np.ndarray | jax.Array
    errors: str = "hessian"
    bread: np.ndarray | None = None

    @property
    def fields(self) -> Json:
        return {"errors": self.errors, "levered": self.bread is not None}

    @property
    def arrays(self) -> PyTree:
        return np.asarray(self.w, dtype=float), np.asarray(self.nu, dtype=float)

    @property
    def free(self) -> PyTree:
        return () if self.bread is None else triangle(np.asarray(self.bread, dtype=float))

    @property
    def shape(self) -> PyTree:
        terms, dim, row = self.terms, self.terms.dim, jnp.ones(1)
        figures = 3 if terms.loss is None else jax.eval_shape(terms.loss.figures, row, row).shape[0]
        half = reals(halves(dim))
        if self.bread is not None:
            return {"meat": half}
        shape = dict.fromkeys(("bread", "model", "face"), half)
        shape |= {} if self.errors in ("hessian", *LEVERED) else {"meat": half}
        shape |= {"slope": reals(dim), "coupled": reals(terms.rows[2], dim), "shares": reals(2)}
        shape |= {"figures": reals(figures)}
        return shape | dict.fromkeys(("rows", "binding", "held", "clusters"), wholes())

    def answer(self, data: AtModel) -> PyTree:
        terms, w, mu = self.terms, np.asarray(self.w, dtype=float), np.asarray(data.mu, dtype=float)
        rows = Data({k: np.asarray(v) for k, v in data.data.items()})
        own_rows = _OneScore(terms, rows, w) if terms.loss is not None else _SeveralScores(terms, rows, w)
        share = np.asarray(play(terms.share, rows)) / terms.clients
        weight, second, own, coupled = self._of_constraints(rows, own_rows, w, share, mu)
        bread = second
        if (penalty := terms.penalty_of(rows)) is not None:
            bread = bread + np.diag(np.asarray(penalty.bend(jnp.asarray(w)))) / terms.clients
        with threads_for(terms.dim):
            bread = bread + own_rows.curvature(weight, self.errors == "hessian")
            if isinstance(own_rows, _OneScore) and self.bread is not None:
                return {"meat": triangle(self._with_leverage(bread, own_rows, weight))}
            answer = {"bread": bread, "model": own_rows.curvature(weight**2, True)}
            if self.errors in ("HC0", "HC1"):
                answer["meat"] = own_rows.squares(weight)
            counts, codes = share > 0, np.zeros(len(share), int)
            if self.errors == "cluster":
                if CLUSTER not in rows:
                    raise FoedusError("errors = 'cluster' needs to know which rows belong together: name their column.")
                _, codes = np.unique(np.asarray(rows[CLUSTER])[counts], return_inverse=True)
                scores = np.zeros((codes.max(initial=-1) + 1, terms.dim))
                np.add.at(scores, codes, own_rows.scores(weight)[counts])
                answer["meat"] = scores.T @ scores
        lengths = np.linalg.norm(own, axis=1, keepdims=True)
        unit = own / np.where(lengths > 0, lengths, 1.0)
        equal = [c.equality for c in self._own_terms() for _ in range(self._count(c, rows))]
        matrices = {k: triangle(v) for k, v in (answer | {"face": unit.T @ unit}).items()}
        return matrices | {
            "slope": own_rows.slope(share),
            "coupled": coupled,
            "shares": np.array([share.sum(), np.sum(share**2)]),
            "figures": np.sum(np.where(counts, own_rows.figures, 0.0), axis=1),
            "rows": np.int64(counts.sum()),
            "binding": np.int64(len(own)),
            "held": np.int64(sum(equal)),
            "clusters": np.int64(codes.max(initial=-1) + 1),
        }

    def _own_terms(self) -> Sequence[Constraint]:
        return [c for c in self.terms.constraints if c.scope == "local"]

    def _count(self, c: Constraint, rows: Data) -> int:
        return len(c.labels(self.terms, rows))

    def _of_constraints(
        self, rows: Data, own_rows: "_OneScore | _SeveralScores", w: np.ndarray, share: np.ndarray, mu: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The weight of each row, second derivatives, the gradients of own rows that bind, those of coupled rows."""
        terms, dim = self.terms, len(w)
        common = np.asarray(self.nu, dtype=float) / terms.clients
        weight, second, place = share.copy(), np.zeros((dim, dim)), {"local": 0, "coupled": 0}
        binding, coupled = [np.zeros((0, dim))], np.zeros((terms.rows[2], dim))
        for c in (c for c in terms.constraints if c.scope != "global"):
            start = place[c.scope]
            place[c.scope] = end = start + self._count(c, rows)
            multipliers = (mu if c.scope == "local" else common)[start:end]
            if isinstance(c, LossRows):
                weights = np.asarray(c.weights(rows))
                weight += multipliers @ weights
                gradients = np.stack([own_rows.slope(some) for some in weights])
            elif isinstance(c, Linear):
                gradients = np.asarray(rows[f"{c.key}.C"])
            else:
                gradients = 2.0 * w[None, :]
                second += 2.0 * float(multipliers[0]) * np.eye(dim)
            if c.scope == "coupled":
                coupled[start:end] = gradients / terms.clients
            else:
                binding.append(gradients[(multipliers > 0) | c.equality])
        return weight, second, np.concatenate(binding), coupled

    def _with_leverage(self, own: np.ndarray, own_rows: "_OneScore", weight: np.ndarray) -> np.ndarray:
        """The meat with each row's leverage; refuses a bread that this site's own is no part of.

        A made-up bread would let one row outweigh all others in the sum.
        """
        bread = np.asarray(self.bread)
        scale = 1.0 / np.sqrt(np.maximum(np.diag(bread), 1e-300))
        rest = (bread - own) * scale[:, None] * scale
        if not np.all(np.isfinite(rest)) or np.linalg.eigvalsh(rest)[0] < -ROUNDING:
            raise FoedusError("the sum that leverages are asked for does not hold this site's own part.")
        values, vectors = np.linalg.eigh(bread * scale[:, None] * scale)
        steep = values > 1e-10 * max(float(values[-1]), 1e-300)
        half = (own_rows.X * scale) @ (vectors[:, steep] / np.sqrt(values[steep]))
        leverage = weight * own_rows.bend * np.sum(half**2, axis=1)
        power = 0.5 if self.errors == "HC2" else 1
        return own_rows.squares(weight / np.maximum(1.0 - leverage, 1e-12) ** power)


class _OneScore:
    """Rows with a loss of the score xᵀw, at a model."""

    def __init__(self, terms: Terms, rows: Data, w: np.ndarray):
        loss = terms.loss
        assert loss is not None
        self.X = np.asarray(rows["x"])
        of = lambda z, y: (loss.slope(z, y), loss.bend(z, y), loss.information(z, y), loss.figures(z, y))  # noqa: E731
        parts = play(of, self.X @ w, np.asarray(rows["y"]))
        self.own, self.bend, self.information, self.figures = map(np.asarray, parts)

    def curvature(self, weight: np.ndarray, average: bool) -> np.ndarray:
        """Σ weight·ℓ'' x xᵀ, or with the average of ℓ''."""
        return gram(self.X, weight * (self.information if average else self.bend))

    def squares(self, weight: np.ndarray) -> np.ndarray:
        """Σ (weight·ℓ')² x xᵀ."""
        return gram(self.X, (weight * self.own) ** 2)

    def scores(self, weight: np.ndarray) -> np.ndarray:
        """weight·ℓ' x of each row. (rows, dim)"""
        return (weight * self.own)[:, None] * self.X

    def slope(self, weight: np.ndarray) -> np.ndarray:
        """Σ weight·ℓ' x."""
        return (weight * self.own) @ self.X


class _SeveralScores:
    """Rows with a likelihood of several scores, at a model."""

    def __init__(self, terms: Terms, rows: Data, w: np.ndarray):
        likelihood, shape = terms.objective, terms.shape
        assert isinstance(likelihood, Likelihood)
        x, y = jnp.asarray(rows["x"]), jnp.asarray(rows["y"])
        self.by_row = lambda u: likelihood.by_row(shape.unravel(u), x, y)
        self.w = jnp.asarray(w)
        self.plain = np.asarray(jax.jacrev(self.by_row)(self.w))
        loss = np.asarray(self.by_row(self.w))
        self.figures = np.stack([2.0 * loss, np.zeros_like(loss), -loss])

    def curvature(self, weight: np.ndarray, average: bool) -> np.ndarray:
        """The second derivatives of Σ weight·ℓ."""
        return np.asarray(jax.hessian(lambda u: jnp.dot(jnp.asarray(weight), self.by_row(u)))(self.w))

    def squares(self, weight: np.ndarray) -> np.ndarray:
        """Σ weight² ∇ℓ ∇ℓᵀ."""
        return gram(self.plain, weight**2)

    def scores(self, weight: np.ndarray) -> np.ndarray:
        """weight·∇ℓ of each row. (rows, dim)"""
        return weight[:, None] * self.plain

    def slope(self, weight: np.ndarray) -> np.ndarray:
        """Σ weight·∇ℓ."""
        return weight @ self.plain


def gram(X: np.ndarray, d: np.ndarray) -> np.ndarray:
    """XᵀDX, a band of rows after the other: the product of X and d would be as large as X."""
    bands = [slice(start, start + BAND) for start in range(0, len(X), BAND)]
    return sum(((X[band] * d[band, None]).T @ X[band] for band in bands), np.zeros((X.shape[1], X.shape[1])))


def ask(sites: Sites, terms: Terms, w: np.ndarray, nu: np.ndarray, errors: str) -> dict[str, np.ndarray]:
    """Return the sums over all sites: one question, or two where the errors rest on leverages."""
    total = {k: np.asarray(v) for k, v in sites.total(Sandwich(terms, w, nu, errors)).items()}
    if errors in LEVERED:
        bread = square(total["bread"], terms.dim)
        total["meat"] = np.asarray(sites.total(Sandwich(terms, w, nu, errors, bread))["meat"])
    return total
