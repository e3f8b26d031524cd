"""The worst case over a polyhedron Cx ≤ d as an interior-point method sees it: samples, inequalities, iterates.

Corollaries B.2 to B.4 give every sample and every piece k of the loss multipliers φ ≥ 0 of the half-spaces:

    α ≥ h_k(w, λ) + φᵀ(d − Cx̂),   ‖r‖_* ≤ λ,   r = slope·w − Cᵀφ,

and for a label that moves too, |−slope − cᵀφ| ≤ κλ. Arrays have samples on their last axis, pieces before them.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from foedus import losses
from foedus.losses import signed
from foedus.pytrees import state
from foedus.robust.closed import Radius
from foedus.robust.form import Form


@dataclass(frozen=True)
class Plan:
    """What is fixed when a program is compiled."""

    metric: str
    width: int  # columns that move
    label: bool  # whether a label moves too, within the support
    floored: bool  # whether a label moves that the support leaves alone
    zero: bool  # whether one piece of the loss is 0
    held: int  # entries of (w, λ) that are drawn to b
    fixed: bool  # whether w stays

    @property
    def first(self) -> int:
        """How many columns stand before r: e, where the metric ties λ to all of r at once."""
        return int(self.metric != "l1")

    @property
    def lanes(self) -> slice:
        """The columns of which each has a bound of its own: |r_j| ≤ λ, or κλ for the label."""
        return slice(0 if self.metric == "l1" else self.width, self.width + self.label)


@state
class Given:
    """The samples as the method sees them: pieces h = constant + slope·xᵀw − toll·λ, and their room d − Cx̂."""

    x: Array  # (columns, rows)
    omega: Array
    slope: Array  # (pieces, rows)
    constant: Array
    toll: Array  # (pieces,)
    C: Array  # (half-spaces, columns of r)
    room: Array  # (half-spaces, rows)
    reach: Array  # (lanes,): 1, or κ for the label
    rho: Array
    floor: Array


@state
class Rows:
    """One number for every inequality: the slacks, or their multipliers."""

    v: Array  # v ≥ V; its multiplier is m = v − a
    piece: Array  # (pieces, rows)
    zero: Array  # (rows,), or nothing
    phi: Array  # (half-spaces, pieces, rows)
    lane: Array  # (2, lanes, pieces, rows): reach·λ − r and reach·λ + r
    side: Array  # (2, columns, pieces, rows), metric ℓ∞: t − r and t + r with t ≥ |r|
    total: Array  # (pieces, rows), likewise: λ − Σt
    floor: Array  # λ less its least
    cone: Array  # (1 + columns, pieces, rows), metric ℓ2: (λ, r)


@state
class Point:
    y: Array  # (w, λ)
    alpha: Array
    s: Rows
    z: Rows


def given_samples(
    form: Form, plan: Plan, x: Array, y: Array, omega: Array, radius: Radius, C: Array, d: Array
) -> Given:
    """What a client's data are to the method."""
    ball, toll = form.ball, jnp.zeros(1)
    # filling rows are copies of a sample, so that none of them shortens a step
    some = jnp.argmax(omega)
    x, y = jnp.where((omega > 0)[:, None], x, x[some]), jnp.where(omega > 0, y, y[some])
    if ball.classifies:
        sign = signed(y)
        slope, constant = -sign[None], jnp.ones((1, y.shape[0]))
        if form.turns:
            slope, constant = jnp.stack([-sign, sign]), jnp.ones((2, y.shape[0]))
            toll = jnp.stack([jnp.zeros(()), radius.kappa])
    else:
        up, down = ball.slopes
        tube = ball.loss.eps if isinstance(ball.loss, losses.EpsilonInsensitive) else 0.0
        slope = jnp.stack([jnp.full(y.shape, up), jnp.full(y.shape, -down)])
        constant, toll = -slope * y - tube, jnp.zeros(2)
    room = d[:, None] - C[:, : plan.width] @ x[:, : plan.width].T
    if C.shape[1] > plan.width:
        room = room - C[:, plan.width :] * y
    reach = jnp.ones(plan.width + 1).at[plan.width].set(radius.kappa)
    floor = ball.lipschitz / radius.kappa if plan.floored else jnp.zeros(())
    return Given(
        x.T, omega, slope, constant, toll, C[:, : plan.width + plan.label],
        jnp.maximum(room, 0.0), reach[plan.lanes], radius.rho, floor,
    )  # fmt: skip


def heights(given: Given, y: Array) -> Array:
    """h of every piece. (pieces, rows)"""
    return given.constant + given.slope * (y[:-1] @ given.x) - given.toll[:, None] * y[-1]


def residue(plan: Plan, given: Given, w: Array, phi: Array) -> Array:
    """r = slope·w − Cᵀφ, and for a label −slope − cᵀφ. (columns, pieces, rows)"""
    r = given.slope * w[: plan.width, None, None]
    r = jnp.concatenate([r, -given.slope[None]]) if plan.label else r
    return r - jnp.tensordot(given.C.T, phi, 1)
