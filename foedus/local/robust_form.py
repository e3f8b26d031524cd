"""The client's worst-case loss as a program whose sample part is one-dimensional (DRFL Appendix B, Section 6).

A vector y holds w, λ and, by the metric and the support, a few columns more. Every sample sees it only through
u_i = x_iᵀr (its margin or residual under r) and a few numbers e that all samples share:

    everything   r = w, ‖w‖_* ≤ λ/L; the ℓ1 norm takes columns t ≥ |w|
    box, ℓ1      r = w − p⁺ + p⁻ with |r| ≤ λ and p ≥ 0, Proposition 6.3 with its π, τ shared by all samples: no loss,
                 for how far a coordinate moves depends on w and λ alone. Moving adds h⁺ = p⁺·high − p⁻·low to xᵀr,
                 and h⁻ = p⁻·high − p⁺·low to −xᵀr. Pinball's two slopes take an r and p of their own each.

So the worst-case loss is cᵀy + Σ_i ω_i [f_0(u_i) + α_i], α_i ≥ φ_k(u_i, e) for a few pieces k, Gy + g ≥ 0.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from foedus import losses
from foedus.algorithm import state
from foedus.local.worst_case import Ball, Radius
from foedus.losses import signed


@state
class Maps:
    """The linear parts of a form: r_a = R_a y, e = E y, G y + g ≥ 0, S y in the second-order cone, and the cost c."""

    R: Array  # (sets of r, dim, size)
    E: Array  # (shared numbers, size)
    G: Array
    g: Array
    S: Array  # no rows unless the metric is ℓ2
    c: Array


@state
class Pieces:
    """φ_k(u_i, e) with their slopes in u and e, and their bends in u; (pieces, ..., rows)."""

    value: Array
    in_u: Array
    in_e: Array
    bend: Array


@state
class Smooth:
    """f_0(u_i), its slope and bend. (rows,)"""

    value: Array
    slope: Array
    bend: Array


@dataclass(frozen=True)
class Form:
    """Which program a client solves; `robust` is false where ρ = 0, `flips` where labels may move at a finite cost.

    With `shared` the server holds λ too, as WAFL's single ball has it.
    """

    ball: Ball
    robust: bool = True
    flips: bool = True
    shared: bool = False

    @property
    def box(self) -> bool:
        return self.robust and self.ball.support == "box"

    @property
    def clips(self) -> int:
        """How many different r there are: two where a box meets two slopes."""
        return 2 if self.box and len(set(self.ball.slopes)) > 1 else 1

    @property
    def shares(self) -> int:
        """The length of e: λ and, with a box, h⁺ and h⁻."""
        return (3 if self.box else 1) if self.robust else 0

    @property
    def cone(self) -> bool:
        return self.robust and not self.box and self.ball.metric == "l2"

    def size(self, dim: int) -> int:
        moving = dim - self.ball.intercept
        if not self.robust:
            return dim
        more = 2 * moving * self.clips if self.box else moving if self.ball.metric == "linf" else 0
        return dim + 1 + more

    def held(self, dim: int) -> int:
        """How many leading entries of y the server holds: w, and λ where it is shared."""
        return dim + 1 if self.shared else dim

    def maps(self, dim: int, radius: Radius) -> Maps:
        """The matrices, which are constants but for ρ, κ and the ends of the box."""
        n, moving, ball = self.size(dim), dim - self.ball.intercept, self.ball
        eye = jnp.eye(n)
        w, moved, none = eye[:dim], eye[:moving], jnp.zeros((0, n))
        if not self.robust:
            return Maps(w[None], none, none, jnp.zeros(0), none, jnp.zeros(n))
        lam = eye[dim]
        limits, g, cone = [], [], none
        if not ball.classifies:
            limits, g = [lam[None]], [-ball.lipschitz / radius.kappa[None]]
        if self.box:
            R, E = [], [lam]
            for k, slope in enumerate(ball.slopes[: self.clips]):
                start = dim + 1 + 2 * k * moving
                up, down = eye[start : start + moving], eye[start + moving : start + 2 * moving]
                r = (slope * w).at[:moving].add(down - up)
                R.append(r)
                limits += [lam - r[:moving], lam + r[:moving], up, down]
                # a set of its own serves one direction only
                rise, fall = radius.high @ up - radius.low @ down, radius.high @ down - radius.low @ up
                E += [rise, fall] if self.clips == 1 else [rise] if k == 0 else [fall]
            E, R = jnp.stack(E), jnp.stack(R)
        else:
            R, E, slope = w[None], lam[None], ball.lipschitz
            if ball.metric == "l1":
                limits += [lam - slope * moved, lam + slope * moved]
            elif ball.metric == "linf":
                t = eye[dim + 1 :]
                limits += [t - moved, t + moved, (lam - slope * jnp.sum(t, axis=0))[None]]
            else:
                cone = jnp.concatenate([lam[None], slope * moved])
        G = jnp.concatenate(limits) if limits else none
        held = jnp.concatenate([*g, jnp.zeros(G.shape[0] - len(g))])
        return Maps(R, E, G, held, cone, radius.rho * lam)

    def start(self, dim: int, b: Array, radius: Radius) -> Array:
        """An interior y at w = b."""
        y = jnp.zeros(self.size(dim)).at[:dim].set(b[:dim])
        if not self.robust:
            return y
        w, moving = b[:dim], dim - self.ball.intercept
        size = jnp.max(jnp.abs(w), initial=0.0)
        top = self.ball.lipschitz * {
            "l1": size, "l2": jnp.sqrt(jnp.sum(w**2)), "linf": jnp.sum(jnp.abs(w)) + 0.1 * moving * (1.0 + size),
        }[self.ball.metric]  # fmt: skip
        floor = jnp.zeros(()) if self.ball.classifies else self.ball.lipschitz / radius.kappa
        y = y.at[dim].set(1.0 + 1.1 * jnp.maximum(top, floor))
        if self.box:
            return y.at[dim + 1 :].set(0.1)
        if self.ball.metric == "linf":
            return y.at[dim + 1 :].set(jnp.abs(w[:moving]) + 0.05 * (1.0 + size))
        return y

    def margins(self, r: Array, x: Array, y: Array) -> Array:
        """u for each r: yxᵀr in classification, xᵀr − slope·y in regression. (sets, rows)"""
        z = r @ x.T
        if self.ball.classifies:
            return signed(y) * z
        slopes = jnp.asarray(self.ball.slopes[: self.clips] if self.box else (1.0,))
        return z - slopes[:, None] * y

    def moves(self, dr: Array, x: Array, y: Array) -> Array:
        """How u changes with r. (sets, rows)"""
        z = dr @ x.T
        return signed(y) * z if self.ball.classifies else z

    def smooth(self, u: Array) -> Smooth | None:
        """f_0, where the loss has a smooth part."""
        loss, u = self.ball.loss, u[0]
        if isinstance(loss, losses.Huber):
            slope = jnp.clip(u, -loss.eps, loss.eps)
            return Smooth(slope * (u - 0.5 * slope), slope, (jnp.abs(u) <= loss.eps).astype(float))
        if isinstance(loss, losses.Logistic):
            p = jax.nn.sigmoid(-u)
            return Smooth(jax.nn.softplus(-u), -p, p * (1.0 - p))
        if isinstance(loss, losses.SmoothHinge) and not (self.flips and self.robust):
            return _smooth_hinge(u)
        return None

    def pieces(self, u: Array, e: Array, y: Array, kappa: Array) -> Pieces | None:
        """The pieces φ_k of which α_i is the largest; None where nothing but f_0 is left."""
        loss, flips = self.ball.loss, self.flips and self.robust and self.ball.classifies
        rows, zero, one = u.shape[1], jnp.zeros(u.shape[1]), jnp.ones(u.shape[1])
        toll = kappa * e[0] if flips else 0.0
        if isinstance(loss, losses.SmoothHinge):
            if not flips:
                return None
            stay, flip = _smooth_hinge(u[0]), _smooth_hinge(-u[0])
            in_e = jnp.stack([zero, -kappa * one])[:, None]
            return Pieces(
                jnp.stack([stay.value, flip.value - toll]),
                jnp.stack([stay.slope, -flip.slope])[:, None],
                in_e,
                jnp.stack([stay.bend, flip.bend]),
            )
        if isinstance(loss, losses.Huber) or (isinstance(loss, losses.Logistic) and not flips):
            return None
        # (constant, slopes in u, slopes in e) of each linear piece
        found: list[tuple[Array, list[Array], list[Array]]] = []
        nothing = [zero] * self.shares
        if isinstance(loss, losses.Logistic):
            found = [(zero, [zero], [zero]), (zero, [one], [-kappa * one])]
        elif isinstance(loss, losses.Hinge):
            positive = (signed(y) > 0).astype(float)
            found = [(zero, [zero], nothing)]
            found.append((one, [-one], [zero, 1.0 - positive, positive] if self.box else nothing))
            if flips:
                found.append((one, [one], [-kappa * one, positive, 1.0 - positive] if self.box else [-kappa * one]))
        else:
            up, down = self.ball.slopes
            rise, fall = ([zero, one, zero], [zero, zero, one]) if self.box else (nothing, nothing)
            if isinstance(loss, losses.EpsilonInsensitive):
                found = [(zero, [zero], nothing), (-loss.eps * one, [one], rise), (-loss.eps * one, [-one], fall)]
            elif self.clips == 2:
                found = [(zero, [one, zero], rise), (zero, [zero, -one], fall)]
            elif self.box:
                found = [(zero, [one], rise), (zero, [-one], fall)]
            else:
                found = [(zero, [up * one], nothing), (zero, [-down * one], nothing)]
        constant = jnp.stack([part[0] for part in found])
        in_u = jnp.stack([jnp.stack(part[1]) for part in found])
        in_e = jnp.stack([jnp.stack(part[2]) if part[2] else jnp.zeros((0, rows)) for part in found])
        value = constant + jnp.sum(in_u * u, axis=1) + jnp.sum(in_e * e[:, None], axis=1)
        return Pieces(value, in_u, in_e, jnp.zeros_like(constant))


def _smooth_hinge(u: Array) -> Smooth:
    """½ − u, ½(1 − u)², 0: the smooth hinge of a margin."""
    short = jnp.clip(1.0 - u, 0.0, 1.0)
    return Smooth(jnp.where(u <= 0.0, 0.5 - u, 0.5 * short**2), -short, ((u > 0.0) & (u < 1.0)).astype(float))
