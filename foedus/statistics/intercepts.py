"""Intercepts of sites: fixed ones that never leave their site, and random ones.

Fixed: a site finds its own intercept α_i(β) for the β that it is asked about, and sends its part of the likelihood with
two derivatives in β, in which α_i is eliminated: XᵀDX − (XᵀD1)(1ᵀDX)/(1ᵀD1). α_i and numbers of events never leave.

Random, for numbers: y = Xβ + b_i + ε with b_i ~ N(0, τ²) and ε ~ N(0, σ²). For θ = τ²/σ² a site sends XᵀX − c ssᵀ and
the like, where s = Σx and c = θ/(1 + nθ), with derivatives in θ; from the sums follow β, σ² and the slope of the
restricted likelihood (REML), whose zero is sought in log θ.

Random, for other families: the likelihood of a site is an integral over b_i, taken by Laplace's method at the b_i that
makes its integrand largest. A site sends its value with two derivatives in (β, log τ).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.numerics.interpreter.dispatch import play
from foedus.problem.losses import Loss
from foedus.statistics.sandwich import gram
from foedus.statistics.survival.newton import maximise
from foedus.statistics.survival.stratified import halves, reals, square, triangle, wholes
from foedus.sums.questions import Question, Sites

STEPS = 100  # of Newton's method for one number at a site
LEAST, MOST = math.log(1e-10), math.log(1e8)  # between which log θ is sought


@dataclass(frozen=True, eq=False)
class SiteRows:
    """One site's rows: columns, target, and offset."""

    X: np.ndarray
    y: np.ndarray
    offset: np.ndarray


@dataclass(frozen=True, eq=False)
class Estimate:
    """What a fit with intercepts of sites finds.

    Args:
        beta: the coefficients.
        covariance: of them.
        rounds: the questions that it took.
        figures: sums of a loss's `figures`, where intercepts are fixed.
        silent: sites whose rows have no finite intercept; they say nothing about β.
        rows: that say something.
        sigma2: the variance of a row; 1 where the family has none.
        tau2: the variance between sites; None where intercepts are fixed.
        log_likelihood: restricted for numbers, by Laplace for others; None where intercepts are fixed.
    """

    beta: np.ndarray
    covariance: np.ndarray
    rounds: int
    figures: np.ndarray
    silent: int
    rows: int
    sigma2: float = 1.0
    tau2: float | None = None
    log_likelihood: float | None = None


# --- fixed ---


@dataclass(frozen=True, eq=False)
class Within(Question):
    """What does a site's likelihood say of β, its own intercept eliminated?

    Args:
        loss: of a row.
        beta: the coefficients.
    """

    kind: ClassVar[str] = "within-site"
    loss: Loss
    beta: np.ndarray

    @property
    def fields(self) -> Json:
        return {"loss": self.loss.name}

    @property
    def arrays(self) -> PyTree:
        return self.beta

    @property
    def shape(self) -> PyTree:
        dim = len(self.beta)
        count = jax.eval_shape(self.loss.figures, jnp.ones(1), jnp.ones(1)).shape[0]
        return wholes(), reals(), reals(dim), reals(halves(dim)), reals(halves(dim)), reals(count)

    def answer(self, data: SiteRows) -> PyTree:
        X, y, dim = data.X, data.y, len(self.beta)
        z = X @ self.beta + data.offset
        alpha = own_intercept(self.loss, z, y)
        if alpha is None:
            none = np.zeros(halves(dim))
            return 0, 0.0, np.zeros(dim), none, none, np.zeros(self.shape[-1].shape)
        value, slope, bend, information, figures = by_row(self.loss, z + alpha, y)
        matrices = [triangle(gram(X, d) - np.outer(d @ X, d @ X) / d.sum()) for d in (bend, information)]
        return len(y), -value.sum(), -(slope @ X), *matrices, figures.sum(axis=1)


def by_row(loss: Loss, z: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return the loss of each row, two derivatives, the average second one, and the figures."""

    def of(z: Array, y: Array) -> tuple[Array, ...]:
        return (loss.value(z, y), loss.slope(z, y), loss.bend(z, y), loss.information(z, y), loss.figures(z, y))

    return [np.asarray(part) for part in play(of, jnp.asarray(z), jnp.asarray(y))]


def own_intercept(loss: Loss, z: np.ndarray, y: np.ndarray) -> float | None:
    """Return the intercept that makes the rows' loss smallest; None where it is infinite."""
    if loss.kind == "classification" and len({*(y > 0).tolist()}) < 2:
        return None
    if loss.link == "log" and not np.any(y > 0):
        return None
    of = lambda z, y: (loss.value(z, y), loss.slope(z, y), loss.bend(z, y))  # noqa: E731
    alpha, state = 0.0, None
    for _ in range(STEPS):
        value, slope, bend = (float(np.sum(p)) for p in play(of, jnp.asarray(z + alpha), jnp.asarray(y)))
        if state is not None and not (math.isfinite(value) and value <= state[0] + 1e-12 * (1 + abs(state[0]))):
            alpha = 0.5 * (alpha + state[1])
            continue
        step = min(max(-slope / max(bend, 1e-300), -2.0), 2.0)
        if abs(step) < 1e-14 * (1.0 + abs(alpha)):
            return alpha
        state = value, alpha
        alpha += step
    return alpha


def fixed(sites: Sites, loss: Loss, names: Sequence[str]) -> Estimate:
    """Return the fit with an intercept of each site's own, by Newton's method on β alone."""
    rounds = 0
    last: list[PyTree] = []

    def evaluate(beta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        nonlocal rounds
        rounds += 1
        last[:] = [sites.total(Within(loss, beta))]
        _, value, gradient, half, _, _ = last[0]
        return float(value), np.asarray(gradient), square(np.asarray(half), len(beta))

    dim = len(names)
    maximum = maximise(evaluate, np.zeros(dim), names)
    evaluate(maximum.point)
    rows, _, _, _, half, figures = last[0]
    silent = int(sites.total(Silent(loss)))
    covariance, count = np.linalg.inv(square(np.asarray(half), dim)), len(sites.names) - silent
    sigma2 = float(figures[1]) / (int(rows) - dim - count) if loss.has_dispersion else 1.0
    return Estimate(maximum.point, sigma2 * covariance, rounds, np.asarray(figures), silent, int(rows), sigma2)


@dataclass(frozen=True, eq=False)
class Silent(Question):
    """Has a site no finite intercept? 1 or 0.

    Args:
        loss: of a row.
    """

    kind: ClassVar[str] = "no-intercept"
    loss: Loss

    @property
    def shape(self) -> PyTree:
        return wholes()

    def answer(self, data: SiteRows) -> PyTree:
        return int(own_intercept(self.loss, data.offset, data.y) is None)


# --- random, for numbers ---


@dataclass(frozen=True, eq=False)
class Mixed(Question):
    """What do a site's rows add to the restricted likelihood at this θ, with its derivative?

    The answer: the rows; A, B, C and L of the module's text, and their derivatives in θ.

    Args:
        theta: τ²/σ².
        dim: the coefficients.
    """

    kind: ClassVar[str] = "random-intercept"
    theta: float
    dim: int

    @property
    def fields(self) -> Json:
        return {"theta": self.theta}

    @property
    def shape(self) -> PyTree:
        half = reals(halves(self.dim))
        return wholes(), half, half, reals(2, self.dim), reals(2), reals(2)

    def answer(self, data: SiteRows) -> PyTree:
        X, y = data.X, data.y - data.offset
        n, s, t = len(y), X.sum(axis=0), y.sum()
        c, rise = self.theta / (1.0 + n * self.theta), 1.0 / (1.0 + n * self.theta) ** 2
        return (
            n,
            triangle(X.T @ X - c * np.outer(s, s)),
            triangle(-rise * np.outer(s, s)),
            np.stack([X.T @ y - c * s * t, -rise * s * t]),
            np.array([y @ y - c * t**2, -rise * t**2]),
            np.array([math.log1p(n * self.theta), n / (1.0 + n * self.theta)]),
        )


def mixed(sites: Sites, dim: int) -> Estimate:
    """Return the fit of y = Xβ + b_i + ε by REML: each θ that is tried takes one question."""
    from scipy.optimize import brentq

    fits: dict[float, tuple[float, Estimate]] = {}

    def rise(log_theta: float) -> float:
        rows, half, half_rise, b, c, log_det = sites.total(Mixed(math.exp(log_theta), dim))
        A, A_rise, free = square(np.asarray(half), dim), square(np.asarray(half_rise), dim), int(rows) - dim
        inverse = np.linalg.inv(A)
        beta = inverse @ b[0]
        rest = float(c[0] - b[0] @ beta)
        slope = float(c[1] - 2.0 * b[1] @ beta + beta @ A_rise @ beta)
        sigma2, theta = rest / free, math.exp(log_theta)
        value = -0.5 * (free * (math.log(2.0 * math.pi * sigma2) + 1.0) + log_det[0] + np.linalg.slogdet(A)[1])
        fit = Estimate(beta, sigma2 * inverse, 0, np.zeros(0), 0, int(rows), sigma2, theta * sigma2, float(value))
        gain = -0.5 * (free * slope / rest + float(log_det[1]) + float(np.trace(inverse @ A_rise)))
        fits[log_theta] = gain * theta, fit
        return gain * theta

    low, high = -4.0, 0.0
    while rise(low) < 0 and low > LEAST:
        low -= 6.0
    while low > LEAST and rise(high) > 0 and high < MOST:
        high += 3.0
    if low <= LEAST:  # sites differ by no more than chance
        best = low
    else:
        best = float(np.asarray(brentq(lambda at: fits[at][0] if at in fits else rise(at), low, high, xtol=1e-10)))
        if best not in fits:
            rise(best)
    own = fits[best][1]
    tau2 = 0.0 if low <= LEAST else own.tau2
    return Estimate(own.beta, own.covariance, len(fits), own.figures, 0, own.rows, own.sigma2, tau2, own.log_likelihood)


# --- random, for other families ---


@dataclass(frozen=True, eq=False)
class Laplace(Question):
    """What is a site's likelihood by Laplace's method, with two derivatives in (β, log τ)?

    Args:
        loss: of a row.
        at: β, and log τ last.
    """

    kind: ClassVar[str] = "random-laplace"
    loss: Loss
    at: np.ndarray

    @property
    def fields(self) -> Json:
        return {"loss": self.loss.name}

    @property
    def arrays(self) -> PyTree:
        return self.at

    @property
    def shape(self) -> PyTree:
        dim = len(self.at)
        return wholes(), reals(), reals(dim), reals(halves(dim))

    def answer(self, data: SiteRows) -> PyTree:
        X, y, offset = (jnp.asarray(part) for part in (data.X, data.y, data.offset))
        loss = self.loss

        def integrand(u: Array, at: Array) -> tuple[Array, Array, Array]:
            """−log of the integrand in u = b/τ, and two derivatives."""
            tau = jnp.exp(at[-1])
            z = X @ at[:-1] + offset + tau * u
            slope, bend = tau * jnp.sum(loss.slope(z, y)) + u, tau**2 * jnp.sum(loss.bend(z, y)) + 1.0
            return -jnp.sum(loss.figures(z, y)[2]) + 0.5 * u**2, slope, bend

        at = jnp.asarray(self.at)
        mode = float(_mode(integrand, at))

        def value(at: Array) -> Array:
            u = jnp.asarray(mode)
            for _ in range(2):  # from the mode on, each step makes one more derivative of it right, and more
                _, slope, bend = integrand(u, at)
                u = u - slope / bend
            least, _, bend = integrand(u, at)
            return -least - 0.5 * jnp.log(bend)

        second = np.asarray(jax.hessian(value)(at))
        return len(data.y), float(value(at)), np.asarray(jax.grad(value)(at)), triangle(-second)


def _mode(integrand: Callable[[Array, Array], tuple[Array, Array, Array]], at: Array) -> Array:
    """The u at which the integrand is largest."""
    u = jnp.zeros(())
    for _ in range(STEPS):
        _, slope, bend = integrand(u, at)
        step = jnp.clip(-slope / bend, -2.0, 2.0)
        u = u + step
        if float(jnp.abs(step)) < 1e-13 * (1.0 + float(jnp.abs(u))):
            break
    return u


def laplace(sites: Sites, loss: Loss, names: Sequence[str], start: np.ndarray) -> Estimate:
    """Return the fit with random intercepts by Laplace's method, by Newton's method on (β, log τ).

    Args:
        sites: with their rows.
        loss: of a row.
        names: of the coefficients.
        start: coefficients to begin with.
    """
    if loss.has_dispersion:
        raise FoedusError(f"random intercepts are not known for {loss.name}, whose rows have a variance of their own.")
    rounds, rows, dim = 0, 0, len(start)

    def evaluate(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        nonlocal rounds, rows
        rounds += 1
        rows, value, gradient, half = sites.total(Laplace(loss, at))
        matrix = square(np.asarray(half), dim + 1)
        values, vectors = np.linalg.eigh(matrix)
        if values[0] <= 0:  # far from the maximum: climb along curved directions by their size
            matrix = (vectors * np.maximum(np.abs(values), 1e-3 * np.max(np.abs(values)))) @ vectors.T
        return float(value), np.asarray(gradient), matrix

    maximum = maximise(evaluate, np.append(start, math.log(0.5)), [*names, "the spread of sites"], dim)
    _, half = (sites.total(Laplace(loss, maximum.point))[k] for k in (1, 3))
    covariance = np.linalg.inv(square(np.asarray(half), dim + 1))[:dim, :dim]
    tau2 = math.exp(2.0 * float(maximum.point[-1]))
    return Estimate(
        maximum.point[:dim], covariance, rounds + 1, np.zeros(0), 0, int(rows), 1.0, tau2, float(maximum.value)
    )
