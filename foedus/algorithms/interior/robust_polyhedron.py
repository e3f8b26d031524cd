"""A site's part in the interior-point method for robust learning where samples stay in a polyhedron.

It stands in for `robust_site.RobustSite` where the worst case has no closed form, on the program of `robust.polyhedron`
and with its eliminations: multipliers φ of the half-spaces, r, α and all multipliers leave the Newton system sample by
sample, then λ, and what is sent is as large as for any other site.

In a step the model moves whole, and every piece of every sample by itself holds back what would leave its bounds. With
w moved and φ held back, the slacks of ‖r‖_* ≤ λ are those of an r that is not slope·w − Cᵀφ; the difference is a
residual that the next step removes, and that counts in the error with the price of r. Stationarity in φ, t and α is
exact at all times: the multipliers of a piece move together, and those of a sample are scaled to sum up to m.
"""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.interior.constants import METHOD
from foedus.algorithms.interior.robust_rows import kept_share
from foedus.algorithms.interior.robust_site import SiteShare
from foedus.base.pytrees import select, state
from foedus.numerics.cone import cone_step, flip, jdot, scale_by
from foedus.numerics.interpreter.program import keep_results
from foedus.robust.closed import Radius
from foedus.robust.form import EpigraphForm
from foedus.robust.polyhedron import (
    OTHERS,
    Aim,
    Inequalities,
    PolyhedronIterate,
    PolyhedronLayout,
    PolyhedronSystem,
    Samples,
    aim,
    gap_of,
    layout_of,
    linearise,
    newton_direction,
    piece_values,
    prepare_samples,
    primal_residual,
    pulls,
    residue,
)
from foedus.robust.step import evenness


@state
class PolyhedronPosition:
    """The site's variables at a point, and the adversary's weight m of the site there."""

    iterate: PolyhedronIterate
    m: Array


@state
class Newton:
    """The Newton system at an iterate; `hats` and `aims` have two entries, towards μ = 0 and per unit of μ."""

    system: PolyhedronSystem
    short: Array  # the primal residual of the samples
    floor_short: Array  # and of λ's floor
    hats: Inequalities
    aims: Aim


@dataclass(frozen=True)
class PolyhedronSite:
    """A site's data as the method sees them; `share` is q̂ of the site, with which its barrier counts."""

    form: EpigraphForm
    x: Array
    y: Array
    omega: Array
    radius: Radius
    share: Array
    C: Array
    d: Array

    @property
    def n_common(self) -> int:
        """How many entries of (w, λ) the server holds."""
        return self.form.server_entries(self.x.shape[1])

    @property
    def layout(self) -> PolyhedronLayout:
        return layout_of(self.form, self.x.shape[1], self.C.shape[1])

    @property
    def samples(self) -> Samples:
        return prepare_samples(self.form, self.layout, self.x, self.y, self.omega, self.radius, self.C, self.d)

    @property
    def nu(self) -> Array:
        """The barrier's weight of the row that is no sample's, λ's floor."""
        return evenness(self.omega) * self.share

    def start(self, common: Array, m: Array) -> PolyhedronPosition:
        """The first place, at w and m: φ, t, λ and α in this order, each large enough for its inequalities."""
        layout, samples, dim = self.layout, self.samples, self.x.shape[1]
        (J, rows), K, w = samples.room.shape, samples.slope.shape[0], common[:dim]
        size = 1.0 + jnp.max(jnp.abs(w))
        length = jnp.sqrt(jnp.sum(samples.C**2, axis=1))
        phi = 0.1 * size / J / jnp.where(length > 0, length, 1.0)
        phi = jnp.broadcast_to(phi[:, None, None], (J, K, rows))
        r = residue(layout, samples, w, phi)
        t = jnp.abs(r[: layout.width]) + 0.05 * size
        lam = 1.0 + 1.1 * jnp.maximum(jnp.max(_norms(layout, samples, r, t)), samples.floor)
        if self.n_common > dim:
            lam = common[dim]
            fit = jnp.minimum(1.0, 0.5 * lam / jnp.max(_norms(layout, samples, r, t)))
            r, t = fit * r, fit * t
        y = jnp.append(w, lam)
        pieces = piece_values(samples, y) + jnp.sum(samples.room[:, None] * phi, axis=0)
        top = jnp.max(pieces, axis=0)
        top = jnp.maximum(top, 0.0) if layout.zero else top
        least = jnp.maximum(samples.rho * lam, 1e-8)
        product = METHOD.first_product * jnp.maximum(jnp.dot(self.omega, jnp.abs(top)), least)
        alpha = top + product * (K + layout.zero)
        s = _slacks(layout, samples, y, alpha, phi, r, t)
        inverse = jnp.sum(1.0 / s.piece, axis=0) + (1.0 / s.zero if layout.zero else 0.0)
        each = m / inverse
        z = jax.tree.map(lambda slack: OTHERS * self.share * product / slack, s)
        cone = OTHERS * self.share * product * flip(s.cone) / jdot(s.cone, s.cone) if layout.metric == "l2" else s.cone
        z = dataclasses.replace(
            z, v=jnp.zeros(()), piece=each / s.piece, zero=each / s.zero if layout.zero else s.zero, cone=cone,
            floor=self.nu * product / s.floor,
        )  # fmt: skip
        return PolyhedronPosition(PolyhedronIterate(y, alpha, s, z), m)

    def visit(
        self, at: PolyhedronPosition, first: Array, common: Array, m: Array, mu: Array, t: Array, dual: Array
    ) -> tuple[PolyhedronPosition, SiteShare, Array]:
        """The place after a step, the site's share there, and the inverses, as `RobustSite.visit` has them."""
        layout, samples = self.layout, self.samples
        # the system at the old place is that of the last round, when it was new
        system_at = keep_results(lambda iterate: self._newton(layout, samples, iterate))

        def advance(
            k: int, loop: tuple[PolyhedronIterate, SiteShare, Array]
        ) -> tuple[PolyhedronIterate, SiteShare, Array]:
            iterate, nothing, inverses = loop
            newton = system_at(iterate)

            def leave() -> tuple[PolyhedronIterate, SiteShare, Array]:
                moved, ends = self.recover(layout, samples, iterate, newton, at.m, common, m, mu, t, dual)
                return select(~first, moved, iterate), nothing, ends

            def arrive() -> tuple[PolyhedronIterate, SiteShare, Array]:
                return iterate, self.eliminate(layout, samples, iterate, newton, m), inverses

            return jax.lax.cond(k == 0, leave, arrive)

        # one system is for the step from the old place, one for the share at the new one; as a loop they compile once
        share = jax.tree.map(lambda part: jnp.zeros(part.shape), jax.eval_shape(lambda: self._first_share(at)))
        iterate, share, inverses = jax.lax.fori_loop(0, 2, advance, (at.iterate, share, jnp.zeros(2)))
        return PolyhedronPosition(iterate, m), share, inverses

    def _first_share(self, at: PolyhedronPosition) -> SiteShare:
        layout, samples = self.layout, self.samples
        return self.eliminate(layout, samples, at.iterate, self._newton(layout, samples, at.iterate), at.m)

    def _newton(self, layout: PolyhedronLayout, samples: Samples, at: PolyhedronIterate) -> Newton:
        """The Newton system at an iterate, and its right-hand sides."""
        system = linearise(layout, samples, at)
        short = primal_residual(layout, samples, system.sigma, at)
        floor_short = at.y[-1] - samples.floor - at.s.floor if layout.has_floor else at.s.floor
        still = jax.tree.map(jnp.zeros_like, at.s)
        still = dataclasses.replace(still, floor=-system.theta.floor * floor_short)
        hat = jax.tree.map(lambda slack: self.share / slack, at.s)
        hat = dataclasses.replace(hat, v=jnp.zeros(()), floor=self.nu / at.s.floor)
        if layout.metric == "l2":
            same = system.scale * scale_by(system.point, at.z.cone)
            hat = dataclasses.replace(hat, cone=self.share * flip(same) / jdot(same, same))
        hats, shorts = jax.tree.map(lambda a, b: jnp.stack([a, b]), (still, short), (hat, jnp.zeros_like(short)))
        aims = jax.vmap(lambda short, hat: aim(layout, samples, system, short, hat))(shorts, hats)
        return Newton(system, short, floor_short, hats, aims)

    def recover(
        self, layout: PolyhedronLayout, samples: Samples, at: PolyhedronIterate, newton: Newton, m_old: Array,
        common: Array, m: Array, mu: Array, t: Array, dual: Array,
    ) -> tuple[PolyhedronIterate, Array]:  # fmt: skip
        """The iterate after the share t of the step that leads to the shared variables, and `visit`'s inverses."""
        dim, system = self.x.shape[1], newton.system
        hat, goal = jax.tree.map(lambda pair: pair[0] + mu * pair[1], (newton.hats, newton.aims))
        dx, m_new = (common - at.y[: self.n_common]) / t, m_old + (m - m_old) / t
        dy = dx
        if self.n_common == dim:
            own = goal.right[dim] - system.g_m[dim] * m_new - jnp.dot(system.hessian[dim, :dim], dx)
            dy = jnp.append(dx, own / system.hessian[dim, dim])
        d = newton_direction(layout, samples, at, system, newton.short, hat, goal, dy, m_new)
        d = dataclasses.replace(d, s=dataclasses.replace(d.s, floor=d.s.floor + newton.floor_short))
        # own variables, and slacks
        lam, inverse, rest = at.y[dim], _blocked(layout, at.s, d.s), kept_share(t)
        least = samples.floor + rest * (lam - samples.floor)
        y = (at.y + t * dy).at[: self.n_common].set(common)
        y = y.at[dim].set(jnp.maximum(y[dim], least)) if self.n_common == dim else y
        way = jnp.minimum(t, METHOD.edge / jnp.maximum(inverse, METHOD.edge))
        phi = at.s.phi + way * d.s.phi
        (r, tops), (dr, d_tops) = _own_r(layout, at.s), _own_r(layout, d.s)
        pieces = piece_values(samples, y) + jnp.sum(samples.room[:, None] * phi, axis=0)
        alpha = jnp.maximum(at.alpha + t * d.alpha, jnp.max(pieces + rest * at.s.piece, axis=0))
        alpha = jnp.maximum(alpha, rest * at.s.zero) if layout.zero else alpha
        r, tops = _fitted(layout, samples, at.s, rest, y[dim], r + way * dr, tops + way * d_tops)
        s = _slacks(layout, samples, y, alpha, phi, r, tops)
        s = dataclasses.replace(s, floor=jnp.maximum(at.s.floor + t * d.s.floor, rest * at.s.floor))
        z, ends = _multipliers(layout, at.z, d.z, dual, rest, m)
        primal = [jnp.max(inverse), jnp.max(-d.s.piece / at.s.piece), jnp.max(-d.s.floor / at.s.floor, initial=0.0)]
        primal += [jnp.max(-d.s.zero / at.s.zero, initial=0.0)]
        return PolyhedronIterate(y, alpha, s, z), jnp.stack([jnp.max(jnp.stack(primal)), ends])

    def eliminate(
        self, layout: PolyhedronLayout, samples: Samples, at: PolyhedronIterate, newton: Newton, m: Array
    ) -> SiteShare:
        """The site's share in the shared system, with λ eliminated where it is the site's own."""
        dim, system = self.x.shape[1], newton.system
        right, rise, bend, slope_m = newton.aims.right, newton.aims.rise, system.bend, system.g_m
        gradient, slope_mu = slope_m * m - right[0], -right[1]
        lag, residual = _lagrangian(layout, samples, at, m)
        count = self.share * layout.products(samples.slope.shape[0], samples.room.shape[0]) + self.nu * layout.has_floor
        gap = gap_of(layout, samples, at.s, at.z) + residual + jnp.sum(at.z.floor * jnp.abs(newton.floor_short))
        v = samples.rho * at.y[dim] + jnp.dot(samples.omega, at.alpha)
        v_0, v_mu, excess, hessian = v + rise[0] - m * bend, rise[1], jnp.zeros(()), system.hessian
        if self.n_common == dim:
            across, pivot = hessian[:dim, dim], hessian[dim, dim]
            g, c, b, pull = (-part[dim] / pivot for part in (gradient, slope_m, slope_mu, lag))
            v_0, v_mu, bend = v_0 + slope_m[dim] * g, v_mu + slope_m[dim] * b, bend - slope_m[dim] * c
            excess = -0.5 * lag[dim] * pull
            gradient, slope_m, slope_mu, lag = (
                part[:dim] + across * own for part, own in ((gradient, g), (slope_m, c), (slope_mu, b), (lag, pull))
            )
            hessian = hessian[:dim, :dim] - jnp.outer(across, across) / pivot
        return SiteShare(hessian, gradient, slope_mu, lag, slope_m, bend, v, v_0, v_mu, gap, excess, count)


def _multipliers(
    layout: PolyhedronLayout, z: Inequalities, d: Inequalities, dual: Array, rest: Array, m: Array
) -> tuple[Inequalities, Array]:
    """The multipliers after the share `dual` of a step, a sample's in sum m, and the inverse of the longest step."""
    inverse = jnp.maximum(_blocked(layout, z, d), -d.piece / z.piece)
    way = jnp.minimum(dual, METHOD.edge / jnp.maximum(inverse, METHOD.edge))
    zero, floor = (jnp.maximum(a + dual * b, rest * a) for a, b in ((z.zero, d.zero), (z.floor, d.floor)))
    total = jnp.sum(z.piece + way * d.piece, axis=0) + (zero if layout.zero else 0.0)
    after = jax.tree.map(lambda a, b: (a + way * b) * (m / total) if a.size else a, z, d)
    after = dataclasses.replace(after, v=z.v, zero=zero * (m / total) if layout.zero else zero, floor=floor)
    ends = [jnp.max(inverse), *(jnp.max(-b / a, initial=0.0) for a, b in ((z.zero, d.zero), (z.floor, d.floor)))]
    return after, jnp.max(jnp.stack(ends))


def _lagrangian(layout: PolyhedronLayout, samples: Samples, at: PolyhedronIterate, m: Array) -> tuple[Array, Array]:
    """The Lagrangian's gradient in (w, λ), and what the primal residual costs at the price of r."""
    z, way, own = at.z, pulls(layout, at.z), samples.slope * samples.omega
    in_w = samples.x @ jnp.sum(own * z.piece, axis=0)
    in_w = in_w.at[: layout.width].add(jnp.einsum("ikn,kn->i", way[: layout.width], own))
    limit = jnp.sum(samples.reach[:, None, None] * (z.lane[0] + z.lane[1]), axis=(0, 1)) + jnp.sum(z.total, axis=0)
    limit = limit + jnp.sum(z.cone[:1], axis=(0, 1)) + jnp.sum(samples.toll[:, None] * z.piece, axis=0)
    in_lam = samples.rho * m - jnp.dot(samples.omega, limit) - jnp.sum(z.floor)
    apart = residue(layout, samples, at.y[:-1], at.s.phi) - _own_r(layout, at.s)[0]
    cost = jnp.dot(samples.omega, jnp.sum(jnp.abs(jnp.sum(way * apart, axis=0)), axis=0))
    return jnp.append(in_w, in_lam), cost


def _norms(layout: PolyhedronLayout, samples: Samples, r: Array, t: Array) -> Array:
    """The λ that each piece of each sample asks for. (pieces, rows)"""
    moving = {
        "l1": jnp.zeros(r.shape[1:]), "l2": jnp.sqrt(jnp.sum(r[: layout.width] ** 2, axis=0)),
        "linf": jnp.sum(t, axis=0),
    }[layout.metric]  # fmt: skip
    lanes = jnp.abs(r[layout.lanes]) / samples.reach[:, None, None]
    return jnp.maximum(moving, jnp.max(lanes, axis=0, initial=0.0))


def _slacks(
    layout: PolyhedronLayout, samples: Samples, y: Array, alpha: Array, phi: Array, r: Array, t: Array
) -> Inequalities:
    """The slacks of an iterate with these r and t."""
    lam, lane, moving, shape = y[-1], r[layout.lanes], r[: layout.width], samples.slope.shape
    limit = samples.reach[:, None, None] * lam
    pieces = piece_values(samples, y) + jnp.sum(samples.room[:, None] * phi, axis=0)
    linf, l2 = layout.metric == "linf", layout.metric == "l2"
    return Inequalities(
        jnp.ones(()), alpha - pieces, alpha if layout.zero else jnp.zeros(0), phi,
        jnp.stack([limit - lane, limit + lane]),
        jnp.stack([t - moving, t + moving]) if linf else jnp.zeros((2, 0, *shape)),
        lam - jnp.sum(t, axis=0) if linf else jnp.zeros((0, shape[1])),
        (lam - samples.floor)[None] if layout.has_floor else jnp.zeros(0),
        jnp.concatenate([jnp.full((1, *shape), lam), moving]) if l2 else jnp.zeros((0, *shape)),
    )  # fmt: skip


def _own_r(layout: PolyhedronLayout, s: Inequalities) -> tuple[Array, Array]:
    """The r and the t that slacks have, or their steps."""
    lane = 0.5 * (s.lane[1] - s.lane[0])
    if layout.metric == "l1":
        return lane, s.side[0]
    moving = s.cone[1:] if layout.metric == "l2" else 0.5 * (s.side[1] - s.side[0])
    return jnp.concatenate([moving, lane]), 0.5 * (s.side[0] + s.side[1])


def _fitted(
    layout: PolyhedronLayout, samples: Samples, before: Inequalities, rest: Array, lam: Array, r: Array, t: Array
) -> tuple[Array, Array]:
    """r and t drawn back until every slack of ‖r‖_* ≤ λ has at least the share `rest` of what it had."""
    lane, limit, width = r[layout.lanes], samples.reach[:, None, None] * lam, layout.width
    lane = jnp.clip(lane, rest * before.lane[1] - limit, limit - rest * before.lane[0])
    if layout.metric == "l1":
        return lane, t
    moving = r[:width]
    if layout.metric == "l2":
        length = jnp.sqrt(jnp.sum(moving**2, axis=0))
        past = before.cone[0] - jnp.sqrt(jnp.sum(before.cone[1:] ** 2, axis=0))
    else:
        length, past = jnp.sum(t, axis=0), before.total
    factor = jnp.minimum(1.0, (lam - rest * past) / length)
    return jnp.concatenate([factor * moving, lane]), factor * t


def _blocked(layout: PolyhedronLayout, value: Inequalities, step: Inequalities) -> Array:
    """The inverse of the longest step of each piece of each sample that keeps its slacks or multipliers positive."""
    ends = [jnp.max(-step.phi / value.phi, axis=0), jnp.max(-step.lane / value.lane, axis=(0, 1), initial=0.0)]
    if layout.metric == "linf":
        ends += [jnp.max(-step.side / value.side, axis=(0, 1)), -step.total / value.total]
    if layout.metric == "l2":
        ends.append(cone_step(value.cone, step.cone))
    return jnp.max(jnp.stack(ends), axis=0)
