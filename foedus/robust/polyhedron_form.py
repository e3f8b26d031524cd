"""The worst case over a polyhedron Cx ≤ d as a program for an interior-point method: samples, inequalities, iterates.

Corollaries B.2 to B.4 give every sample and every piece k of the loss multipliers φ ≥ 0 of the half-spaces:

    α ≥ h_k(w, λ) + φᵀ(d − Cx̂),   ‖r‖_* ≤ λ,   r = slope·w − Cᵀφ,

and for a label that moves too, |−slope − cᵀφ| ≤ κλ. Arrays have samples on their last axis, pieces before them.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import state
from foedus.problem import losses
from foedus.problem.losses import signed
from foedus.robust.closed import Radius
from foedus.robust.form import EpigraphForm


@dataclass(frozen=True)
class PolyhedronLayout:
    """The static part of the program."""

    metric: str
    width: int  # columns that move
    label: bool  # whether labels move within the support
    has_floor: bool  # whether labels move without a bound, which puts a floor under λ
    zero: bool  # whether one piece of the loss is 0
    server_entries: int  # the entries of (w, λ) that are drawn to b
    keep_w: bool  # whether w stays as it is

    @property
    def first(self) -> int:
        """The number of columns before r: 1 for e, where the metric ties λ to all of r at once, else 0."""
        return int(self.metric != "l1")

    @property
    def lanes(self) -> slice:
        """The columns that have a bound of their own, |r_j| ≤ λ, or κλ for the label."""
        return slice(0 if self.metric == "l1" else self.width, self.width + self.label)

    def products(self, pieces: int, half_spaces: int) -> int:
        """The number of complementarity products of a sample; a cone's is one."""
        of_metric = {"l1": 2 * self.width, "l2": 1, "linf": 2 * self.width + 1}[self.metric]
        return pieces * (1 + half_spaces + 2 * self.label + of_metric) + self.zero


def layout_of(form: EpigraphForm, dim: int, columns: int, keep_w: bool = False) -> PolyhedronLayout:
    """The layout for `dim` columns of X and a C of so many columns."""
    ball = form.ball
    width, labels = dim - ball.intercept, form.flips and not ball.classifies
    return PolyhedronLayout(
        ball.metric, width, labels and columns > width, labels and columns == width,
        not isinstance(ball.loss, losses.Pinball), 0 if keep_w else form.server_entries(dim), keep_w,
    )  # fmt: skip


@state
class Samples:
    """The samples in the form that the method uses: pieces h = constant + slope·xᵀw − toll·λ, and the room d − Cx̂."""

    x: Array  # (columns, rows)
    omega: Array
    slope: Array  # (pieces, rows)
    constant: Array
    toll: Array  # (pieces,)
    C: Array  # (half-spaces, columns of r)
    room: Array  # (half-spaces, rows)
    reach: Array  # (lanes,): 1, or κ for the label
    rho: Array
    floor: Array  # the least λ, where labels move without a bound


@state
class Inequalities:
    """One number for every inequality: the slacks, or their multipliers."""

    v: Array  # v ≥ V; its multiplier is m = v − a
    piece: Array  # (pieces, rows)
    zero: Array  # (rows,), or nothing
    phi: Array  # (half-spaces, pieces, rows)
    lane: Array  # (2, lanes, pieces, rows): reach·λ − r and reach·λ + r
    side: Array  # (2, columns, pieces, rows), metric ℓ∞: t − r and t + r with t ≥ |r|
    total: Array  # (pieces, rows), likewise: λ − Σt
    floor: Array  # λ less its floor
    cone: Array  # (1 + columns, pieces, rows), metric ℓ2: (λ, r)


@state
class PolyhedronIterate:
    """An iterate, or a direction; φ is its own slack, as s.phi."""

    y: Array  # (w, λ)
    alpha: Array  # (rows,)
    s: Inequalities
    z: Inequalities


def prepare_samples(
    form: EpigraphForm, layout: PolyhedronLayout, x: Array, y: Array, omega: Array, radius: Radius, C: Array, d: Array
) -> Samples:
    """A client's data in the form that the method uses."""
    ball, toll = form.ball, jnp.zeros(1)
    # filling rows become copies of a sample: with their zeros they could block a step that no sample blocks
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
    room = d[:, None] - C[:, : layout.width] @ x[:, : layout.width].T
    if C.shape[1] > layout.width:
        room = room - C[:, layout.width :] * y
    reach = jnp.ones(layout.width + 1).at[layout.width].set(radius.kappa)
    floor = ball.lipschitz / radius.kappa if layout.has_floor else jnp.zeros(())
    return Samples(
        x.T, omega, slope, constant, toll, C[:, : layout.width + layout.label],
        jnp.maximum(room, 0.0), reach[layout.lanes], radius.rho, floor,
    )  # fmt: skip


def heights(samples: Samples, y: Array) -> Array:
    """The value h of every piece before samples move. (pieces, rows)"""
    return samples.constant + samples.slope * (y[:-1] @ samples.x) - samples.toll[:, None] * y[-1]


def residue(layout: PolyhedronLayout, samples: Samples, w: Array, phi: Array) -> Array:
    """The vectors r = slope·w − Cᵀφ, with −slope − cᵀφ for a label. (columns, pieces, rows)"""
    r = samples.slope * w[: layout.width, None, None]
    r = jnp.concatenate([r, -samples.slope[None]]) if layout.label else r
    return r - jnp.tensordot(samples.C.T, phi, 1)
