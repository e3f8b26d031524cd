"""The client's worst-case loss as a program in which each sample enters by one number (DRFL Appendix B, Section 6).

The variables are a vector y: w, λ and, depending on metric and support, a few more. The terms of sample i depend on y
only through u_i = x_iᵀr + o (its margin or residual under r, shifted) and one or two numbers e that all samples share:

    everything   r = w, ‖w‖_* ≤ λ/L; the ℓ1 norm takes columns t ≥ |w|
    box, ℓ1      r = w − p⁺ + p⁻ with |r| ≤ λ and p ≥ 0: Proposition 6.3 with its π, τ shared by all samples. Nothing
                 is lost by sharing: how far a coordinate moves depends on w and λ alone. Moving adds
                 h⁺ = p⁺·high − p⁻·low to xᵀr and h⁻ = p⁻·high − p⁺·low to −xᵀr: with o = (h⁺ − h⁻)/2 in
                 u, the rest of both is the same e = (h⁺ + h⁻)/2. Pinball's two slopes have an r and p each, with
                 their h in o.

So the worst-case loss is cᵀy + Σ_i ω_i [f_0(u_i) + α_i], α_i ≥ φ_k(u_i, e) for a few pieces k, Gy + g ≥ 0. Where pieces
are linear, their slopes are the same for all samples.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import state
from foedus.problem import losses
from foedus.problem.losses import signed
from foedus.robust.closed import Ball, Radius


@state
class Maps:
    """The linear parts of the program: r_a = R_a y, e = E y, G y + g ≥ 0, S y in a second-order cone, the cost c."""

    R: Array  # (number of r, dim, size); with a box one row more, that of the shift o
    E: Array  # (number of e, size)
    G: Array
    g: Array
    S: Array  # no rows unless the metric is ℓ2
    c: Array


@state
class Pieces:
    """The pieces φ_k(u_i, e) with their slopes in u and e, and their second derivatives in u, 0 unless curved."""

    value: Array  # (pieces, rows)
    in_u: Array  # (pieces, number of r, rows), or with 1 for rows where slopes are constant
    in_e: Array  # (pieces, number of e)
    bend: Array  # (pieces, rows)


@state
class Smooth:
    """The smooth part f_0(u_i), its slope and second derivative. (rows,)"""

    value: Array
    slope: Array
    bend: Array


@dataclass(frozen=True)
class EpigraphForm:
    """The static part of the program that a client solves.

    `robust` is false where ρ = 0, and `flips` is true where labels may move at a finite cost. With `shares_lambda` λ is
    a variable of the server, as in WAFL's single ball.
    """

    ball: Ball
    robust: bool = True
    flips: bool = True
    shares_lambda: bool = False

    @property
    def box(self) -> bool:
        """Whether samples stay in a box, which matters where they move."""
        return self.robust and self.ball.support == "box"

    @property
    def polyhedral(self) -> bool:
        """Whether samples stay in a set for which the worst case has no closed form, only half-spaces."""
        return self.robust and not self.ball.has_closed_form

    @property
    def clips(self) -> int:
        """The number of different r: two where a box meets a loss with two slopes."""
        return 2 if self.box and len(set(self.ball.slopes)) > 1 else 1

    @property
    def turns(self) -> bool:
        """Whether labels may be turned, at the price κλ."""
        return self.flips and self.robust and self.ball.classifies

    @property
    def linear(self) -> bool:
        """Whether the pieces are linear; the smooth hinge's are not."""
        return not isinstance(self.ball.loss, losses.SmoothHinge)

    @property
    def cone(self) -> bool:
        """Whether ‖w‖₂ ≤ λ/L is a second-order cone constraint."""
        return self.robust and not self.box and self.ball.metric == "l2"

    def size(self, dim: int) -> int:
        """The length of y."""
        moving = dim - self.ball.intercept
        if not self.robust:
            return dim
        if self.polyhedral:
            return dim + 1
        more = 2 * moving * self.clips if self.box else moving if self.ball.metric == "linf" else 0
        return dim + 1 + more

    def server_entries(self, dim: int) -> int:
        """The number of leading entries of y that are the server's: w, and λ where it is shared."""
        return dim + 1 if self.shares_lambda else dim

    def maps(self, dim: int, radius: Radius) -> Maps:
        """The matrices, which depend on the client only by ρ, κ and the ends of the box."""
        n, moving, ball = self.size(dim), dim - self.ball.intercept, self.ball
        eye = jnp.eye(n)
        w, moving_w, none = eye[:dim], eye[:moving], jnp.zeros((0, n))
        if not self.robust:
            return Maps(w[None], none, none, jnp.zeros(0), none, jnp.zeros(n))
        lam = eye[dim]
        if self.polyhedral:
            # all that does not belong to a sample, which has φ of its own
            return Maps(w[None], none, lam[None], jnp.zeros(1), none, radius.rho * lam)
        limits, g, cone = [], [], none
        if not ball.classifies:
            # λκ ≥ L, or a label would move without end
            limits, g = [lam[None]], [-ball.lipschitz / radius.kappa[None]]
        if self.box:
            R, E = [], [lam] if self.turns else []
            for k, slope in enumerate(ball.slopes[: self.clips]):
                start = dim + 1 + 2 * k * moving
                up, down = eye[start : start + moving], eye[start + moving : start + 2 * moving]
                r = (slope * w).at[:moving].add(down - up)
                limits += [lam - r[:moving], lam + r[:moving], up, down]
                rise, fall = radius.high @ up - radius.low @ down, radius.high @ down - radius.low @ up
                # with two r, each serves one direction only
                shift = 0.5 * (rise - fall) if self.clips == 1 else rise if k == 0 else -fall
                R.append(jnp.concatenate([r, shift[None]]))
                E += [0.5 * (rise + fall)] if self.clips == 1 else []
            E, R = jnp.stack(E) if E else none, jnp.stack(R)
        else:
            R, E, slope = w[None], lam[None] if self.turns else none, ball.lipschitz
            if ball.metric == "l1":
                limits += [lam - slope * moving_w, lam + slope * moving_w]
            elif ball.metric == "linf":
                t = eye[dim + 1 :]
                limits += [t - moving_w, t + moving_w, (lam - slope * jnp.sum(t, axis=0))[None]]
            else:
                cone = jnp.concatenate([lam[None], slope * moving_w])
        G = jnp.concatenate(limits) if limits else none
        constants = jnp.concatenate([*g, jnp.zeros(G.shape[0] - len(g))])
        return Maps(R, E, G, constants, cone, radius.rho * lam)

    def start(self, dim: int, b: Array, radius: Radius) -> Array:
        """A y with w = b that satisfies every inequality strictly."""
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
        """The u for each r: yxᵀr in classification, xᵀr − slope·y in regression. (number of r, rows)"""
        products = self.moves(r, x, y)
        if self.ball.classifies:
            return products
        slopes = jnp.asarray(self.ball.slopes[: self.clips] if self.box else (1.0,))
        return products - slopes[:, None] * y

    def moves(self, dr: Array, x: Array, y: Array) -> Array:
        """The change of u for a change of r. (number of r, rows)"""
        z = dr[:, : x.shape[1]] @ x.T
        z = z + dr[:, -1:] if self.box else z
        return signed(y) * z if self.ball.classifies else z

    def smooth(self, u: Array) -> Smooth | None:
        """The smooth part f_0, or None where the loss has none."""
        loss, u = self.ball.loss, u[0]
        if isinstance(loss, losses.Huber):
            slope = jnp.clip(u, -loss.eps, loss.eps)
            return Smooth(slope * (u - 0.5 * slope), slope, (jnp.abs(u) <= loss.eps).astype(float))
        if isinstance(loss, losses.Logistic):
            p = jax.nn.sigmoid(-u)
            return Smooth(jax.nn.softplus(-u), -p, p * (1.0 - p))
        if isinstance(loss, losses.SmoothHinge) and not self.turns:
            return _smooth_hinge(u)
        return None

    def pieces(self, u: Array, e: Array, kappa: Array) -> Pieces | None:
        """The pieces φ_k of which α_i is the largest, or None where f_0 is all there is."""
        loss, toll = self.ball.loss, [-kappa] if self.turns else []
        if isinstance(loss, losses.SmoothHinge):
            if not self.turns:
                return None
            stay, flip = _smooth_hinge(u[0]), _smooth_hinge(-u[0])
            return Pieces(
                jnp.stack([stay.value, flip.value - kappa * e[0]]),
                jnp.stack([stay.slope, -flip.slope])[:, None],
                jnp.asarray([[0.0], *([t] for t in toll)]),
                jnp.stack([stay.bend, flip.bend]),
            )
        if isinstance(loss, losses.Huber) or (isinstance(loss, losses.Logistic) and not self.turns):
            return None
        # (constant, slopes in u, slopes in e) of each piece; e is λ where labels turn, then the e of the box
        none, still, reach = [0.0] * len(toll), [0.0] if self.box else [], [1.0] if self.box else []
        if isinstance(loss, losses.Logistic):
            table = [(0.0, [0.0], none), (0.0, [1.0], toll)]
        elif isinstance(loss, losses.Hinge):
            table = [(0.0, [0.0], none + still), (1.0, [-1.0], none + reach)]
            table += [(1.0, [1.0], toll + reach)] if self.turns else []
        elif isinstance(loss, losses.EpsilonInsensitive):
            table = [(0.0, [0.0], still), (-loss.eps, [1.0], reach), (-loss.eps, [-1.0], reach)]
        elif self.clips == 2:
            table = [(0.0, [1.0, 0.0], []), (0.0, [0.0, -1.0], [])]
        elif self.box:
            table = [(0.0, [1.0], reach), (0.0, [-1.0], reach)]
        else:
            up, down = self.ball.slopes
            table = [(0.0, [up], []), (0.0, [-down], [])]
        constant, in_u = (jnp.asarray([part[k] for part in table]) for k in (0, 1))
        in_e = jnp.asarray([part[2] for part in table]).reshape(len(table), e.shape[0])
        value = (constant + in_e @ e)[:, None] + in_u @ u
        return Pieces(value, in_u[:, :, None], in_e, jnp.zeros_like(value))


def _smooth_hinge(u: Array) -> Smooth:
    """The smooth hinge of a margin: ½ − u below 0, ½(1 − u)² between 0 and 1, and 0 above."""
    short = jnp.clip(1.0 - u, 0.0, 1.0)
    return Smooth(jnp.where(u <= 0.0, 0.5 - u, 0.5 * short**2), -short, ((u > 0.0) & (u < 1.0)).astype(float))
