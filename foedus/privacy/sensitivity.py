"""Sensitivities: proved bounds on how far a client's message moves when one of its examples changes.

Let D and D' be neighbouring data sets of client i, and fix everything that was released before: the messages a client
receives are functions of releases, so they are the same under D and D'. Only the client's private state and its
gradient differ. Δ bounds the change of the mean of clipped gradients AT ONE POINT,
    ‖ĝ_D(w) − ĝ_D'(w)‖ ≤ Δ = changed/d_i,   changed = 2C (replace one example) or C (add or remove one),
for every example contributes at most C, and d_i is a public constant. δ bounds the change of the private state. All δ
are functions of Δ, of settings and of the round alone. A release with noise calibrated to δ is private given the past,
for every past; adaptive composition over the rounds does the rest. Every recursion is linear in Δ, so that the
add-or-remove bound is half of the replace-one bound throughout.

Rounding. The proofs are about real numbers, and clients compute with 53 bits. Four additions, all of public numbers,
cover the difference; u = 2^-53. They hold for settings within `privacy.ranges`, where nothing overflows.
  - `change` adds (d_i + 8)·4u·C to Δ: a sum of d_i vectors of norm at most C/d_i, in whatever order, is off by at most
    about d_i·u·C, under each of the two data sets.
  - `change` multiplies Δ by 1 + 2^-30, for the few roundings of C/‖x‖, of products and of the recursions below.
  - `Sound.allowance` adds 2^-40·R to every release, R the largest 1-norm of a model that the client has received. Noise
    goes to the increment of w, but the points at which gradients are taken and a carried state have the size of w and
    are rounded at its last bits. The allowance is 4096 times 2u·R.
  - The part of a step that depends on no example, such as the gradient of a penalty of curvature ρ, is as long as ρ·|w|
    and is added to the data's part before the noise. It is rounded at its own last bits, and the data's part with it.
    So each formula adds ROUNDING times the largest 1-norm of what is added up, which is public too, and carries that on
    as it carries δ. A penalty so heavy that rounding would hide the data's part makes the noise as large.
"""

import jax.numpy as jnp
from jax import Array

from foedus.base.errors import FoedusError
from foedus.privacy.noise import Sound
from foedus.privacy.ranges import FURTHEST
from foedus.problem.losses import Custom, Loss
from foedus.problem.terms import Terms

ROUNDING = 2.0**-46  # 64 roundings, each of 2u under either of the two data sets


def change(noise: Sound, count: Array) -> Array:
    """Return Δ, by how much the mean of clipped gradients at one point differs between neighbours, with rounding."""
    return change_of_mean(noise, noise.gradient_change, noise.clip, count)


def change_of_mean(noise: Sound, changed: float, bound: float, count: Array) -> Array:
    """Return by how much a mean over examples differs between neighbours, with rounding.

    One example changes the sum by at most `changed` in norm, and each is at most `bound` long.
    """
    fewest, most = noise.rows_range(count)
    return (1.0 + 2.0**-30) * changed / fewest + (most + 8.0) * 2.0**-51 * bound


def exact_penalty(delta: Array, mu: Array, eta: Array | float, change: Array) -> Array:
    """Return δ of w_i after one step of EPM (20) with a data-independent μ (c_i = 0).

    w_i⁺ = w + soft(μ(w_i − w) − g, λ)/(η + μ), and soft thresholding is non-expansive in every coordinate, so in any
    p-norm ‖w_i⁺ − w_i⁺'‖ ≤ (μ‖w_i − w_i'‖ + ‖g − g'‖)/(η + μ) ≤ (μδ + Δ)/(η + μ). Starting a round at the received w
    (restart) is δ = 0, for w is the same under both data sets.
    """
    return (mu * delta + change) / (eta + mu)


def inexact_admm(
    delta: Array, change: Array, a: Array, sigma: Array | float, k0: int, in_c: Array
) -> tuple[Array, Array]:
    """Return δ of π_i and of z_i after FedGiA's round with H_i = r·I, from δ of π_i; `change` is of ḡ_i = ∇f_i/m.

    With c = 1 − σa, a = 1/(r/m + σ), the k0 steps are linear in (π_i, ḡ_i):
        in C:      π⁺ = c^k0 π − (1 − c^k0) ḡ,   z = x + c^(k0−1)(1/σ − 2a) π − (a c^(k0−1) + (1 − c^k0)/σ) ḡ
        elsewhere: π⁺ = −ḡ,                      z = x − ḡ/σ
    and x is the same under both data sets, so the triangle inequality gives the bounds in any norm. δ of π never
    exceeds Δ/m: it is a mean of the old δ and of Δ/m.
    """
    c = 1.0 - sigma * a
    power, before = c**k0, c ** (k0 - 1)
    inside = jnp.abs(before * (1.0 / sigma - 2.0 * a)) * delta + (a * before + (1.0 - power) / sigma) * change
    of_pi = jnp.where(in_c, power * delta + (1.0 - power) * change, change)
    return of_pi, jnp.where(in_c, inside, change / sigma)


def curvature(terms: Terms, rows: float, count: Array) -> tuple[Array | float, Array | float]:
    """Bound the eigenvalues of the Hessian of f_i with clipped gradients, for rows of norm at most `rows`.

    The gradient s(z)x of a loss of z = xᵀw is clipped by clamping s to ±C/‖x‖, which keeps a non-decreasing s so, and
    its slope below that of s. Hence 0 ≤ slope ≤ κ where the loss is convex with curvature κ, and the Hessian of the
    mean lies between 0 and κ·rows²; without convexity between −κ·rows² and κ·rows². The penalty adds its own curvature.
    """
    assert terms.loss is not None and terms.loss.curvature is not None
    high = terms.loss.curvature * rows**2
    low = 0.0 if terms.loss.convex else -high
    if terms.penalty is None:
        return low, high
    own = terms.penalty.curvature(count)
    ridge = terms.penalty.convex and type(terms.penalty).__name__ == "Ridge"
    return low + (own if ridge else 0.0 if terms.penalty.convex else -own), high + own


def public_curvature(terms: Terms, noise: Sound, count: Array) -> Array:
    """Return a curvature of f_i that all parties know, for step sizes; no guarantee depends on it.

    With a bound on the rows it is the one of `curvature`. Without one nobody knows it; then rows are taken to be as
    long as the clip, which they are where a loss of slope at most 1 is clipped little. The penalty is not clipped, so
    that its own curvature always counts.
    """
    bend = None if terms.loss is None else terms.loss.curvature
    if bend is not None and noise.rows is not None:
        return jnp.asarray(curvature(terms, noise.rows, count)[1])
    guess = jnp.asarray((1.0 if bend is None else bend) * noise.clip**2)
    return guess if terms.penalty is None else guess + terms.penalty.curvature(count)


def descent(delta: Array, rate: Array | float, low: Array | float, high: Array | float, change: Array) -> Array:
    """Return δ in the 2-norm after a step u ← u − γ∇F_D(u), where the Hessian of F_D lies between `low` and `high`.

    u⁺ − u⁺' = [T_D(u) − T_D(u')] + γ(∇F_D'(u') − ∇F_D(u')), T_D = id − γ∇F_D. The first part is at most q·δ with q =
    max(|1 − γ low|, |1 − γ high|), the largest eigenvalue of the symmetric I − γ∇²F_D along the segment; the second is
    at most |γ|Δ. For convex F and 0 < γ ≤ 2/high, q ≤ 1: k steps reach at most kγΔ.
    """
    return contraction(rate, low, high) * delta + jnp.abs(rate) * change


def contraction(rate: Array | float, low: Array | float, high: Array | float) -> Array:
    """Return q of `descent`: the factor by which a gradient step changes the distance of two points, at the most."""
    return jnp.maximum(jnp.abs(1.0 - rate * low), jnp.abs(1.0 - rate * high))


def in_the_one_norm(
    delta: Array, rate: Array | float, low: Array | float, high: Array | float, change: Array, dim: int
) -> Array:
    """Return the bound of `descent` in the 1-norm, for a Δ in the 1-norm, from the δ in the 2-norm before the step.

    ‖T_D(u) − T_D(u')‖₁ ≤ √dim·q·δ, and the second part of the difference is at most |γ|Δ in the 1-norm itself. (A Δ in
    the 1-norm is one in the 2-norm too.)
    """
    return dim**0.5 * contraction(rate, low, high) * delta + jnp.abs(rate) * change


def steepness(terms: Terms, count: Array) -> Array:
    """Return the curvature of the part of f_i that depends on no example; its gradient is at most that times |w|."""
    return jnp.zeros(()) if terms.penalty is None else jnp.asarray(terms.penalty.curvature(count))


def longest_gradient(terms: Terms, noise: Sound, count: Array, reach: Array) -> Array:
    """Return the largest 1-norm of the clipped gradient with its penalty, for models of 1-norm at most `reach`."""
    return terms.dim**0.5 * noise.clip + steepness(terms, count) * reach


def within_reach(reach: Array, bound: Array) -> Array:
    """Return the bound; infinite, so that noise alone is sent, where numbers may become too large for its proof."""
    return jnp.where(reach <= FURTHEST, bound, jnp.inf)


def check_several(terms: Terms, noise: Sound, name: str) -> None:
    """Raise where the sensitivity of several gradient steps is not known."""
    kind = type(noise).__name__
    if terms.loss is None or terms.loss.curvature is None:
        raise FoedusError(
            f"{name} with {kind} noise and several gradients a round needs a loss of xᵀw with bounded curvature, which "
            "limits how far two runs drift apart; use k0=1, or FedEPM, which takes one gradient a round."
        )
    if type(terms.loss).__module__ != Loss.__module__ or isinstance(terms.loss, Custom):
        raise FoedusError(
            f"{name} with {kind} noise and several gradients a round rests on the curvature of the loss, which nobody "
            "has proved for a loss of your own; use k0=1, or FedEPM, which takes one gradient a round."
        )
    if noise.rows is None:
        raise FoedusError(
            f"{name} with {kind} noise and several gradients a round needs {kind}(rows=...), a bound on the 2-norm of "
            "the rows of X, which limits how far two runs drift apart; or use k0=1."
        )


def several_steps(
    terms: Terms, noise: Sound, count: Array, rates: list[Array], reach: Array, pull: float = 0.0
) -> Array:
    """Return the sensitivity of gradient steps with these rates on f_i + (pull/2)‖u − w‖², from a public w.

    `reach` is the 1-norm of w. The points of later steps are rounded too, which moves a gradient by up to the curvature
    times that, and each product of a row by as many roundings as it has entries.
    """
    gradient_change, fewest = change(noise, count), noise.rows_range(count)[0]
    steep, w = steepness(terms, fewest), noise.furthest(reach)
    if len(rates) == 1:
        return within_reach(w, jnp.abs(rates[0]) * (gradient_change + ROUNDING * steep * w))
    assert noise.rows is not None
    low, high = curvature(terms, noise.rows, count)
    low, high = low + pull, high + pull
    delta, distance = jnp.zeros(()), jnp.zeros(())  # `distance` bounds the 1-norm of u − w
    for number, rate in enumerate(rates):
        last = number == len(rates) - 1
        rounding = ROUNDING * (1.0 + terms.dim * jnp.abs(rate) * high) * (w + distance)
        if last and noise.order == 1:
            delta = in_the_one_norm(delta, rate, low, high, gradient_change, terms.dim) + rounding
        else:
            delta = descent(delta, rate, low, high, gradient_change) + rounding
        distance = distance + jnp.abs(rate) * (longest_gradient(terms, noise, fewest, w + distance) + pull * distance)
    return within_reach(w + distance, delta)


def exact_penalty_rounding(
    terms: Terms, noise: Sound, count: Array, k0: int, reach: Array, releases: Array, weight: Array, lam: float
) -> Array:
    """Return what rounding adds to δ of a round of EPM (20), whose weights are `weight` or more.

    w_i⁺ = (ηw + μw_i)/(η + μ) − (g ± λ)/(η + μ) up to the threshold, so that |w_i| grows by at most (|g| + dim·λ)/μ in
    each step of each round, beyond the largest |w| that was received.
    """
    step = (longest_gradient(terms, noise, count, reach) + terms.dim * lam) / weight
    state = reach + (releases + 1.0) * k0 * step
    return within_reach(state, ROUNDING * (k0 + 2.0) * (reach + state + step))
