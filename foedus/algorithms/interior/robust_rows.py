"""Rows Gy + g ≥ 0 and one second-order cone Sy + h, with multipliers, as a primal-dual interior-point method has them.

Both a site and the server have such rows: of the norm of w, of the support, of the set Q of weights, of a regulariser.
A multiplier z of a slack s is drawn to ν·μ/s with the barrier's weight ν; the cone's to ν·μ·s⁻¹, with NT scaling. In a
step, every slack and every multiplier keeps at least a share of its value, each for itself: what a step would take
beyond that is left to the next one, so that no row holds back the others. The share is 30 % in a whole step. In one
that was shortened so that nobody has to be held back it is 1 %: keeping more would lift the bounds α and λ after
all, and where an optimum has wide slacks that close, as those of a few separable rows, this undid the step.
"""

import jax.numpy as jnp
from jax import Array

from foedus.algorithms.interior.constants import METHOD
from foedus.base.pytrees import state
from foedus.numerics.cone import cone_step, flip, jdot, scaling
from foedus.robust.form import EpigraphForm


@state
class SampleRows:
    """The matrices; S has no rows where there is no cone."""

    G: Array
    g: Array
    S: Array
    h: Array

    @property
    def count(self) -> int:
        """How many complementarity products there are; the cone's is one."""
        return self.G.shape[0] + (self.S.shape[0] > 0)

    def slacks(self, y: Array) -> tuple[Array, Array]:
        return self.G @ y + self.g, self.S @ y + self.h


@state
class Multipliers:
    z: Array
    q: Array  # of the cone


def kept_share(t: Array) -> Array:
    """The share of every slack and multiplier that the share t of a step leaves at least."""
    return jnp.where(t < 1.0, METHOD.last_kept, METHOD.least_kept)


def no_rows(size: int) -> SampleRows:
    none = jnp.zeros((0, size))
    return SampleRows(none, jnp.zeros(0), none, jnp.zeros(0))


def centred(rows: SampleRows, y: Array, mu: Array) -> Multipliers:
    """The multipliers whose products are mu."""
    s, q = rows.slacks(y)
    return Multipliers(mu / s, mu * _inverse(q))


def _inverse(q: Array) -> Array:
    """s⁻¹ of the cone's algebra."""
    return flip(q) / jdot(q, q) if q.shape[0] else q


@state
class SampleRowSums:
    """What rows add to a Newton system."""

    hessian: Array
    pull: Array  # −Gᵀz − Sᵀq, their part in the Lagrangian's gradient
    pull_mu: Array  # that of the multipliers to which they are drawn, over μ
    gap: Array  # the sum of complementarity products


def row_sums(rows: SampleRows, y: Array, at: Multipliers, nu: Array) -> SampleRowSums:
    """The rows' part in the Newton system at y."""
    s, q = rows.slacks(y)
    hessian = (rows.G * (at.z / s)[:, None]).T @ rows.G
    if q.shape[0]:
        _, inverse = scaling(q, at.q)
        root = inverse @ rows.S
        hessian = hessian + root.T @ root
    pull = -at.z @ rows.G - at.q @ rows.S
    pull_mu = -nu * ((1.0 / s) @ rows.G + _inverse(q) @ rows.S)
    return SampleRowSums(hessian, pull, pull_mu, jnp.dot(s, at.z) + jnp.dot(q, at.q))


def change(rows: SampleRows, y: Array, at: Multipliers, dy: Array, mu: Array, nu: Array) -> Multipliers:
    """The Newton step of the multipliers that goes with dy."""
    s, q = rows.slacks(y)
    dz = nu * mu / s - at.z - at.z / s * (rows.G @ dy)
    dq = at.q
    if q.shape[0]:
        _, inverse = scaling(q, at.q)
        dq = nu * mu * _inverse(q) - at.q - inverse @ (inverse @ (rows.S @ dy))
    return Multipliers(dz, dq)


def along(at: Multipliers, d: Multipliers, t: Array, share: Array) -> Multipliers:
    """The multipliers after the share t of a step, each keeping at least this share of itself."""
    q = at.q
    if q.shape[0]:
        q = q + d.q * jnp.minimum(t, METHOD.edge / jnp.maximum(cone_step(q, d.q), METHOD.edge))
    return Multipliers(jnp.maximum(at.z + t * d.z, share * at.z), q)


def blocked(rows: SampleRows, y: Array, dy: Array) -> Array:
    """The inverse of the longest step along dy that keeps slacks positive."""
    s, q = rows.slacks(y)
    longest = jnp.max(-(rows.G @ dy) / s, initial=0.0)
    return jnp.maximum(longest, cone_step(q, rows.S @ dy)) if q.shape[0] else longest


def blocked_dual(at: Multipliers, d: Multipliers) -> Array:
    """Likewise for the multipliers."""
    longest = jnp.max(-d.z / at.z, initial=0.0)
    return jnp.maximum(longest, cone_step(at.q, d.q)) if at.q.shape[0] else longest


def lifted(rows: SampleRows, old: Array, new: Array, share: Array, first: int, lam: int | None) -> Array:
    """`new` with auxiliary variables raised until every slack has at least this share of what it had at `old`.

    From `first` on, columns are bounds that only gain from being larger: t ≥ |w| and the like, each in rows of its own.
    λ, at `lam`, enters all other rows with coefficient 1, and the cone as its first entry.
    """
    s, q = rows.slacks(old)
    by_lam = rows.G[:, lam] > 0 if lam is not None else jnp.zeros(s.shape[0], bool)
    own = (rows.G[:, first:] > 0) & ~by_lam[:, None]
    missing = jnp.maximum(share * s - rows.slacks(new)[0], 0.0)
    new = new.at[first:].add(jnp.max(jnp.where(own, missing[:, None], 0.0), axis=0, initial=0.0))
    if lam is None:
        return new
    now, cone = rows.slacks(new)
    short = jnp.max(jnp.where(by_lam, share * s - now, 0.0), initial=0.0)
    if q.shape[0]:
        room, room_now = (c[0] - jnp.sqrt(jnp.sum(c[1:] ** 2)) for c in (q, cone))
        short = jnp.maximum(short, share * room - room_now)
    return new.at[lam].add(short)


def balanced(form: EpigraphForm, at: Multipliers, dim: int) -> Multipliers:
    """The multipliers with those of t_j ≥ ±w_j, metric ℓ∞, in sum what λ ≥ L Σt asks for: t is then stationary."""
    if not (form.robust and not form.box and not form.polyhedral and form.ball.metric == "linf"):
        return at
    width, first = dim - form.ball.intercept, int(not form.ball.classifies)
    return paired(at, first, width, form.ball.lipschitz * at.z[first + 2 * width])


def paired(at: Multipliers, first: int, width: int, total: Array) -> Multipliers:
    """The multipliers with those of two groups of rows, t ≥ a and t ≥ −a, in sum `total` for each t."""
    pair = at.z[first : first + 2 * width].reshape(2, width)
    pair = pair * (total / jnp.sum(pair, axis=0))
    return Multipliers(at.z.at[first : first + 2 * width].set(jnp.ravel(pair)), at.q)
