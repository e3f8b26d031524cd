"""Terms that contradict each other: a test that does not depend on units, and the evidence by site.

Rows c ≤ 0 and e = 0 and multipliers z, which are not negative on inequalities, are given at a point w. If the rows are
convex (equations linear) and w' meets them, then 0 ≥ zᵀc(w') ≥ zᵀc(w) + pᵀ(w' − w) with the pull p = Σ z∇c. So where
the price P = zᵀc(w) is positive and p vanishes, no point meets the terms: z is evidence as in the lemma of Farkas.

In floating point p is never 0. With units σ of the columns, the reach P / Σ σ_j|p_j| says how many units away, in some
column, a point must be that meets the terms. The unit of a column is a change by which the functions change noticeably,
as 1/√(∂²f/∂w_j²): given in other units, a column changes σ_j and p_j by inverse factors, and the reach stays. In a
bounded domain of the model the most that pᵀ(w − w') can be is known, and no unit is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import state
from foedus.certificate.rows import Row
from foedus.problem.regularizers import Regularizer

TINY = 1e-300
EVIDENT = 10.0  # the least reach that is called evidence
NAMED = 0.01  # rows with at least this share of the largest weight are named
SURE = 1e12  # a reach beyond which nothing is said of distances
FARTHEST = 1e6  # the largest distance that is said: rounding alone decides about larger ones
MOST_NAMED = 6  # rows in a sentence


def reach(price: Array, pull: Array, unit: Array, h: Regularizer | None = None, w: Array | None = None) -> Array:
    """How many units away a point must be that meets convex terms: 0 where the price is not positive.

    It is infinite where h has a bounded domain and no point of it meets the terms.

    Args:
        price: P = zᵀc.
        pull: p = Σ z∇c, by column.
        unit: σ, by column.
        h: the regulariser, if its domain is not among the rows.
        w: the model.
    """
    gain = jnp.where(pull == 0, 0.0, unit * jnp.abs(pull))
    most = jnp.inf
    if h is not None and w is not None:
        gain = jnp.where(h.room(w, pull) > 0, gain, 0.0)
        most = h.most_gain(w, pull)
    far = price / jnp.maximum(jnp.sum(gain), TINY)
    return jnp.where(price > 0, jnp.where(price > most, jnp.inf, far), 0.0)


@dataclass(frozen=True)
class UnseenRows:
    """Sums over rows that stay at their sites."""

    slack: float = 0.0  # Σ|μ·c|
    price: tuple[float, float] = (0.0, 0.0)  # Σ z·c for z = μ, and for z = the violations
    weight: tuple[float, float] = (0.0, 0.0)  # Σ|z|
    broken: bool = False  # whether one of them is
    convex: bool = True  # whether all of them are


@state
class RowSlopes:
    """Derivatives of all parties' rows at a point, as far as they are seen."""

    local: Array  # Σ z∇c over the sites' own rows, for z = μ, and for z = the violations. (2, columns)
    steep: Array  # Σ (∇c)² over the same rows
    shared: Array  # ∇c of each row of the server, and then of each coupled row


@dataclass(frozen=True)
class WeighedRow:
    """A row that takes part in a contradiction, with its share of all multipliers."""

    site: str
    constraint: str
    weight: float


@dataclass(frozen=True)
class Contradiction:
    """Evidence that terms cannot be met: the rows that contradict each other, and how far a remedy would have to be.

    rows      the rows by falling weight; the absolute values of all weights add up to 1
    excess    the sum of weight × (value − cap), which no change of the model lessens to 0
    reach     how many units of its columns away a point must be that meets the terms, if they are convex
    convex    whether the rows are; if not, it is no proof but the reason why small steps do not help
    unseen    the weight of rows that stay at their sites, where only sums are seen
    """

    rows: tuple[WeighedRow, ...]
    excess: float
    reach: float
    convex: bool
    unseen: float = 0.0

    def __str__(self) -> str:
        large = [row for row in self.rows if abs(row.weight) >= NAMED * max(abs(self.rows[0].weight), self.unseen)]
        named = [f"{row.constraint} at {row.site!r} ({row.weight:.3g})" for row in large[:MOST_NAMED]]
        if len(self.rows) > len(named) and named:
            named.append(f"{len(self.rows) - len(named)} more")
        if self.unseen > 0:
            named.append(f"rows of sites' own ({self.unseen:.3g} in all, and masked sums do not say whose)")
        what = f"weighed by these multipliers they exceed their caps by {self.excess:.3g} together"
        if not self.convex:
            return (
                f"no small step helps {', '.join(named)}: {what} (the constraints are not convex, so this is no proof)"
            )
        how = (
            "no model"
            if self.reach >= SURE
            else f"no model within {min(self.reach, FARTHEST):.1g} units of its columns"
        )
        return f"these rows contradict each other: {', '.join(named)}; {what}, and {how} meets them all"

    @staticmethod
    def from_json(record: dict[str, Any] | None) -> "Contradiction | None":
        """The evidence that was saved, or None."""
        if record is None:
            return None
        return Contradiction(**{**record, "rows": tuple(WeighedRow(**row) for row in record["rows"])})


def contradiction_of(
    rows: Sequence[Row],
    slopes: RowSlopes,
    bend: np.ndarray | float,
    h: Regularizer,
    w: np.ndarray,
    convex: bool,
    unseen: UnseenRows,
) -> Contradiction | None:
    """The evidence at w, measured there; None where neither multipliers nor violations are evidence.

    Args:
        rows: the rows that are seen, with their multipliers: local ones, then the server's and the coupled ones.
        slopes: their derivatives.
        bend: the diagonal of the Lagrangian's Hessian, 0 where it is not measured.
        h: the regulariser, whose domain may be bounded.
        w: the model.
        convex: whether the rows are convex.
        unseen: sums over the rows that are not seen.
    """
    c = np.array([row.value - row.cap for row in rows])
    multipliers = np.array([row.multiplier for row in rows])
    violations = np.array([row.violation if row.kind == "<=" else row.value - row.cap for row in rows])
    shared = np.asarray(slopes.shared)
    # the squared unit of a column: ∇²f and ∇²c as the multipliers weigh them, and the slopes of all rows
    size = bend / (1.0 + unseen.weight[0] + float(np.sum(np.abs(multipliers))))
    size = size + np.asarray(slopes.steep) + np.sum(shared**2, axis=0)
    unit = np.where(size > 0, 1.0 / np.sqrt(np.where(size > 0, size, 1.0)), 0.0)
    best: Contradiction | None = None
    for k, z in enumerate((multipliers, violations)):
        total, price = unseen.weight[k] + float(np.sum(np.abs(z))), unseen.price[k] + float(z @ c)
        if any(weight < 0 for weight, row in zip(z, rows, strict=True) if row.kind == "<="):
            continue
        if not (np.isfinite(price) and np.isfinite(total) and price > 0):
            continue
        pull = np.asarray(slopes.local)[k] + z[len(z) - len(shared) :] @ shared
        far = float(reach(jnp.asarray(price), jnp.asarray(pull), jnp.asarray(unit), h, jnp.asarray(w)))
        if far < EVIDENT or (best is not None and far <= best.reach):
            continue
        parts = [WeighedRow(r.site, r.constraint, float(x / total)) for r, x in zip(rows, z, strict=True) if x != 0]
        parts.sort(key=lambda row: -abs(row.weight))
        best = Contradiction(tuple(parts), price / total, far, convex, unseen.weight[k] / total)
    return best
