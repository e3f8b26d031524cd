"""A site's part in the interior-point method for robust learning where samples stay in a polyhedron.

It stands in for `interior_site.RobustSite` where the worst case has no closed form, on the program of `polyhedron_form`
and with the eliminations of `polyhedron_system`: multipliers φ of the half-spaces, r, α and all multipliers leave the
Newton system sample by sample, then λ, and what is sent is as large as for any other site.

In a step the model moves whole, and every piece of every sample by itself holds back what would leave its bounds. With
w moved and φ held back, the slacks of ‖r‖_* ≤ λ are those of an r that is not slope·w − Cᵀφ; the difference is a
residual that the next step removes, and that counts in the error with the price of r. Stationarity in φ, t and α is
exact at all times: the multipliers of a piece move together, and those of a sample are scaled to sum up to m.
Because what a site does by itself costs no exchange, it then takes a few steps more towards its own central point at
the new w and m.
"""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from foedus.numerics.cone import cone_step, flip, jdot, scale_by
from foedus.pytrees import state
from foedus.robust.closed import Radius
from foedus.robust.form import EpigraphForm
from foedus.robust.interior_rows import EDGE, LEAST
from foedus.robust.interior_site import START, SiteShare
from foedus.robust.polyhedron import OTHERS, gap_of, pulls
from foedus.robust.polyhedron_form import (
    Inequalities,
    PolyhedronIterate,
    PolyhedronLayout,
    Samples,
    heights,
    layout_of,
    prepare_samples,
    residue,
)
from foedus.robust.polyhedron_system import PolyhedronSystem, aim, linearise, newton_direction, primal_residual
from foedus.robust.step import evenness

CENTRINGS = 2  # steps of a site by itself after each step of the model


@state
class PolyhedronPosition:
    """The site's variables at a point, and the adversary's weight m of the site there."""

    iterate: PolyhedronIterate
    m: Array


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
    def held(self) -> int:
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

    def start(self, shared: Array, m: Array) -> PolyhedronPosition:
        """The first place, at w and m: φ, t, λ and α are chosen in this order, each large enough for its inequalities."""
        layout, samples, dim = self.layout, self.samples, self.x.shape[1]
        (J, rows), K, w = samples.room.shape, samples.slope.shape[0], shared[:dim]
        size = 1.0 + jnp.max(jnp.abs(w))
        length = jnp.sqrt(jnp.sum(samples.C**2, axis=1))
        phi = 0.1 * size / J / jnp.where(length > 0, length, 1.0)
        phi = jnp.broadcast_to(phi[:, None, None], (J, K, rows))
        r = residue(layout, samples, w, phi)
        t = jnp.abs(r[: layout.width]) + 0.05 * size
        lam = 1.0 + 1.1 * jnp.maximum(jnp.max(_norms(layout, samples, r, t)), samples.floor)
        if self.held > dim:
            lam = shared[dim]
            fit = jnp.minimum(1.0, 0.5 * lam / jnp.max(_norms(layout, samples, r, t)))
            r, t = fit * r, fit * t
        y = jnp.append(w, lam)
        pieces = heights(samples, y) + jnp.sum(samples.room[:, None] * phi, axis=0)
        top = jnp.max(pieces, axis=0)
        top = jnp.maximum(top, 0.0) if layout.zero else top
        product = START * jnp.maximum(jnp.dot(self.omega, jnp.abs(top)), 1e-8)
        alpha = top + product * (K + layout.zero)
        s = _slacks(layout, samples, y, alpha, phi, r, t, jnp.ones((K, rows)))
        inverse = jnp.sum(1.0 / s.piece, axis=0) + (1.0 / s.zero if layout.zero else 0.0)
        each = m / inverse
        z = jax.tree.map(lambda slack: OTHERS * self.share * product / slack, s)
        cone = OTHERS * self.share * product * flip(s.cone) / jdot(s.cone, s.cone) if layout.metric == "l2" else s.cone
        z = dataclasses.replace(
            z, v=jnp.zeros(()), piece=each / s.piece, zero=each / s.zero if layout.zero else s.zero, cone=cone,
            floor=self.nu * product / s.floor,
        )  # fmt: skip
        return PolyhedronPosition(PolyhedronIterate(y, alpha, s, z), m)

    def step(
        self, at: PolyhedronPosition, shared: Array, m: Array, mu: Array, t: Array, dual: Array
    ) -> tuple[PolyhedronPosition, Array]:
        """The place after the share t of a step that leads the shared (w, λ) and m to the given ones.

        `dual` is the share of the multipliers' step. Second, the inverses of the longest t and of the longest `dual`
        with which nothing would have to be held back.
        """
        layout, samples, one = self.layout, self.samples, jnp.ones(())

        def advance(
            k: int, loop: tuple[PolyhedronIterate, Array, Array]
        ) -> tuple[PolyhedronIterate, Array, Array]:
            iterate, m_old, inverses = loop
            first = k == 0
            way, way_dual = jnp.where(first, t, one), jnp.where(first, dual, one)
            dx, dm = (shared - iterate.y[: self.held]) / way, (m - m_old) / way
            after, new = self._moved(layout, samples, iterate, m_old, dx, dm, m, mu, way, way_dual)
            after = dataclasses.replace(after, y=after.y.at[: self.held].set(shared))
            return after, m, jnp.where(first, new, inverses)

        iterate, _, inverses = jax.lax.fori_loop(0, 1 + CENTRINGS, advance, (at.iterate, at.m, jnp.zeros(2)))
        return PolyhedronPosition(iterate, m), inverses

    def _moved(
        self, layout: PolyhedronLayout, samples: Samples, at: PolyhedronIterate, m_old: Array, dx: Array, dm: Array,
        m: Array, mu: Array, t: Array, dual: Array,
    ) -> tuple[PolyhedronIterate, Array]:  # fmt: skip
        """The iterate after the share t of the step in which the shared variables move by dx, and `step`'s inverses."""
        dim = self.x.shape[1]
        system = linearise(layout, samples, at)
        short, floor_short, hat = self._towards(layout, samples, at, system)
        hat = jax.tree.map(lambda part: mu * part, hat)
        hat = dataclasses.replace(hat, floor=hat.floor - system.theta.floor * floor_short)
        goal = aim(layout, samples, system, short, hat)
        dy = dx
        if self.held == dim:
            own = goal.right[dim] - system.g_m[dim] * (m_old + dm) - jnp.dot(system.hessian[dim, :dim], dx)
            dy = jnp.append(dx, own / system.hessian[dim, dim])
        d = newton_direction(layout, samples, at, system, short, hat, goal, dy, m_old + dm)
        d = dataclasses.replace(d, s=dataclasses.replace(d.s, floor=d.s.floor + floor_short))
        lam = at.y[dim]
        low = samples.floor + LEAST * (lam - samples.floor)
        y = (at.y + t * dy).at[dim].set(jnp.maximum(lam + t * dy[dim], low))
        # slacks
        inverse = _blocked(layout, at.s, d.s)
        way = jnp.minimum(t, EDGE / jnp.maximum(inverse, EDGE))
        phi = at.s.phi + way * d.s.phi
        r, sides = _own_r(layout, at.s)
        dr, d_sides = _own_r(layout, d.s)
        pieces = heights(samples, y) + jnp.sum(samples.room[:, None] * phi, axis=0)
        alpha = jnp.maximum(at.alpha + t * d.alpha, jnp.max(pieces + LEAST * at.s.piece, axis=0))
        if layout.zero:
            alpha = jnp.maximum(alpha, LEAST * at.s.zero)
        r, tops = _fitted(layout, samples, at.s, y[dim], r + way * dr, sides + way * d_sides)
        s = _slacks(layout, samples, y, alpha, phi, r, tops, at.s.piece)
        s = dataclasses.replace(s, floor=jnp.maximum(at.s.floor + t * d.s.floor, LEAST * at.s.floor))
        # multipliers
        inverse_dual = jnp.maximum(_blocked(layout, at.z, d.z), -d.z.piece / at.z.piece)
        way = jnp.minimum(dual, EDGE / jnp.maximum(inverse_dual, EDGE))
        z = jax.tree.map(lambda a, b: a + (way if a.size else 1.0) * b, at.z, d.z)
        alone = {name: jnp.maximum(getattr(at.z, name) + dual * getattr(d.z, name), LEAST * getattr(at.z, name)) for name in ("zero", "floor")}
        z = dataclasses.replace(z, v=jnp.zeros(()), **alone)
        total = jnp.sum(z.piece, axis=0) + (z.zero if layout.zero else 0.0)
        scaled = jax.tree.map(lambda part: part * (m / total) if part.size else part, z)
        z = dataclasses.replace(scaled, v=z.v, floor=z.floor)
        ends = [jnp.max(inverse), jnp.max(-d.s.piece / at.s.piece), jnp.max(-d.s.floor / at.s.floor, initial=0.0)]
        ends += [jnp.max(-d.s.zero / at.s.zero)] if layout.zero else []
        ends_dual = [jnp.max(inverse_dual), jnp.max(-d.z.floor / at.z.floor, initial=0.0)]
        ends_dual += [jnp.max(-d.z.zero / at.z.zero)] if layout.zero else []
        inverses = jnp.stack([jnp.max(jnp.stack(ends)), jnp.max(jnp.stack(ends_dual))])
        return PolyhedronIterate(y, alpha, s, z), inverses

    def _towards(
        self, layout: PolyhedronLayout, samples: Samples, at: PolyhedronIterate, system: PolyhedronSystem
    ) -> tuple[Array, Array, Inequalities]:
        """The primal residuals, of the samples and of λ's floor; and the targets ẑ of multipliers per unit of μ."""
        short = primal_residual(layout, samples, system.sigma, at)
        floor_short = at.y[-1] - samples.floor - at.s.floor if layout.has_floor else at.s.floor
        hat = jax.tree.map(lambda slack: self.share / slack, at.s)
        hat = dataclasses.replace(hat, v=jnp.zeros(()), floor=self.nu / at.s.floor)
        if layout.metric == "l2":
            same = system.scale * scale_by(system.point, at.z.cone)
            hat = dataclasses.replace(hat, cone=self.share * flip(same) / jdot(same, same))
        return short, floor_short, hat

    def condense(self, at: PolyhedronPosition) -> tuple[PolyhedronPosition, SiteShare]:
        """The site's share in the Newton system; the place is as it was."""
        layout, samples, iterate, m, dim = self.layout, self.samples, at.iterate, at.m, self.x.shape[1]
        system = linearise(layout, samples, iterate)
        short, floor_short, hat = self._towards(layout, samples, iterate, system)
        still = jax.tree.map(jnp.zeros_like, hat)
        still = dataclasses.replace(still, floor=-system.theta.floor * floor_short)
        near, far = (
            aim(layout, samples, system, short, still),
            aim(layout, samples, system, jnp.zeros_like(short), hat),
        )
        gradient, slope_mu, slope_m = system.g_m * m - near.right, -far.right, system.g_m
        lag, residual = self._lagrangian(layout, samples, iterate, m)
        K, J = samples.slope.shape[0], samples.room.shape[0]
        count = self.share * layout.products(K, J) + self.nu * layout.has_floor
        gap = gap_of(layout, samples, iterate.s, iterate.z) + residual + jnp.sum(iterate.z.floor * jnp.abs(floor_short))
        v = samples.rho * iterate.y[dim] + jnp.dot(samples.omega, iterate.alpha)
        v_0, v_mu, bend, excess = v + near.rise - m * system.bend, far.rise, system.bend, jnp.zeros(())
        hessian = system.hessian
        if self.held == dim:
            across, pivot = hessian[:dim, dim], hessian[dim, dim]
            g, c, b, l = (-part[dim] / pivot for part in (gradient, slope_m, slope_mu, lag))
            v_0, v_mu, bend = v_0 + slope_m[dim] * g, v_mu + slope_m[dim] * b, bend - slope_m[dim] * c
            excess = -0.5 * lag[dim] * l
            gradient, slope_m, slope_mu, lag = (
                part[:dim] + across * own for part, own in ((gradient, g), (slope_m, c), (slope_mu, b), (lag, l))
            )
            hessian = hessian[:dim, :dim] - jnp.outer(across, across) / pivot
        return at, SiteShare(hessian, gradient, slope_mu, lag, slope_m, bend, v, v_0, v_mu, gap, excess, count)

    def _lagrangian(
        self, layout: PolyhedronLayout, samples: Samples, at: PolyhedronIterate, m: Array
    ) -> tuple[Array, Array]:
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
    layout: PolyhedronLayout, samples: Samples, y: Array, alpha: Array, phi: Array, r: Array, t: Array, like: Array
) -> Inequalities:
    """The slacks of an iterate with these r and t; `like` has the shape of a number per piece."""
    lam, lane, moving, shape = y[-1], r[layout.lanes], r[: layout.width], like.shape
    limit = samples.reach[:, None, None] * lam
    pieces = heights(samples, y) + jnp.sum(samples.room[:, None] * phi, axis=0)
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
    layout: PolyhedronLayout, samples: Samples, before: Inequalities, lam: Array, r: Array, t: Array
) -> tuple[Array, Array]:
    """r and t drawn back until every slack of ‖r‖_* ≤ λ has at least LEAST of what it had."""
    lane, limit, width = r[layout.lanes], samples.reach[:, None, None] * lam, layout.width
    lane = jnp.clip(lane, LEAST * before.lane[1] - limit, limit - LEAST * before.lane[0])
    if layout.metric == "l1":
        return lane, t
    moving = r[:width]
    if layout.metric == "l2":
        length = jnp.sqrt(jnp.sum(moving**2, axis=0))
        past = before.cone[0] - jnp.sqrt(jnp.sum(before.cone[1:] ** 2, axis=0))
    else:
        length, past = jnp.sum(t, axis=0), before.total
    factor = jnp.minimum(1.0, (lam - LEAST * past) / length)
    return jnp.concatenate([factor * moving, lane]), factor * t


def _blocked(layout: PolyhedronLayout, value: Inequalities, step: Inequalities) -> Array:
    """The inverse of the longest step of each piece of each sample that keeps its own slacks or multipliers positive."""
    ends = [jnp.max(-step.phi / value.phi, axis=0), jnp.max(-step.lane / value.lane, axis=(0, 1), initial=0.0)]
    if layout.metric == "linf":
        ends += [jnp.max(-step.side / value.side, axis=(0, 1)), -step.total / value.total]
    if layout.metric == "l2":
        ends.append(cone_step(value.cone, step.cone))
    return jnp.max(jnp.stack(ends), axis=0)
