"""Stress tests: the worst-case loss of any linear model over a Wasserstein ball, and the distribution that attains it.

fd.robust.worst_case_loss(w, (X, y), 0.1, loss=fd.losses.hinge)
fd.robust.worst_case(w, (X, y), 0.1, loss=fd.losses.hinge).distribution   # where each sample moves
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus import losses, robust_bound
from foedus.algorithms.minimax import Minimax
from foedus.algorithms.support import check_inside, is_support, kind_of, sides
from foedus.algorithms.weights import heaviest
from foedus.constraints import Custom
from foedus.distribution import Distribution, attaining, attaining_in_polyhedron, filled, mean_loss, still
from foedus.errors import FoedusError
from foedus.local import polyhedron
from foedus.local import worst_case as closed
from foedus.local.robust_form import Form
from foedus.local.worst_case import PIECEWISE_LINEAR, Ball, Radius
from foedus.losses import Loss, as_loss
from foedus.problem import Problem, stack

SMALL_GAP = 1e-3  # of the worst case: a difference that no figure of a report shows
LEAST_SCALE = 1e-2  # of the worst case of w = 0: where the optimum is all but 0, its share would ask for the impossible


@dataclass(frozen=True)
class WorstCase:
    """One client's worst case: its value, the mean loss it starts from, λ (the price of a unit of radius), moves."""

    value: float
    nominal: float
    lam: float
    radius: float
    distribution: Distribution | None = None


@dataclass(frozen=True)
class Stress:
    """The worst case over clients and weights: its value, the weights q that attain it, and each client's own.

    `gap` bounds by how much the objective, the worst case with the regulariser, is above the least that any model has;
    it is None where it was not measured. `at_zero` is at least the objective of the model w = 0.
    """

    value: float
    q: dict[str, float]
    clients: dict[str, WorstCase] = field(default_factory=dict)
    gap: float | None = None
    at_zero: float | None = None

    def judge(self, reason: str) -> tuple[bool, str]:
        """Whether a run whose own stopping test held is called converged, and the reason with what was measured."""
        if not np.isfinite(self.value):
            return False, f"the rounds stood still, but the worst case is {self.value:g}; standardise the columns of X"
        zero = np.inf if self.at_zero is None else self.at_zero
        if self.gap is None:
            if self.value > (1.0 + SMALL_GAP) * zero:
                return False, (
                    f"the rounds stood still ({reason}), but the worst case is {self.value:.4g}, and that of the model "
                    f"w = 0 is at most {zero:.4g}; standardise the columns of X"
                )
            return True, f"{reason}; the duality gap was not measured"
        floor = LEAST_SCALE * zero if np.isfinite(zero) else 0.0
        if self.gap <= SMALL_GAP * max(self.value, floor):
            return True, f"{reason}; duality gap {self.gap:.2g}"
        return False, (
            f"the rounds stood still ({reason}), but the worst case {self.value:.4g} may be {self.gap:.4g} above the "
            "best possible; standardise the columns of X, or ask for a smaller tol"
        )

    def __str__(self) -> str:
        titles = ("site", "mean loss", "worst case", "radius", "price λ", "weight q")
        rows = [
            (
                name,
                f"{c.nominal:.4f}",
                f"{c.value:.4f}",
                f"{c.radius:g}",
                f"{c.lam:.4g}",
                f"{self.q.get(name, 1.0):.4f}",
            )
            for name, c in self.clients.items()
        ]
        widths = [max(len(row[j]) for row in [titles, *rows]) for j in range(len(titles))]

        def line(row: tuple[str, ...]) -> str:
            return "  ".join(c.rjust(w) if j else c.ljust(w) for j, (c, w) in enumerate(zip(row, widths, strict=True)))

        head = f"worst case: {self.value:.6g}, measured at the returned w over all sites; "
        known = self.gap is not None
        head += f"at most {self.gap:.2g} above the best possible worst case" if known else "duality gap not measured"
        return "\n".join([head, line(titles), "-" * len(line(titles)), *(line(row).rstrip() for row in rows)])

    def to_json(self) -> dict[str, Any]:
        """Figures alone: where samples move is data, and is not kept."""
        names = ("value", "nominal", "lam", "radius")
        clients = {k: {name: getattr(c, name) for name in names} for k, c in self.clients.items()}
        return {"value": self.value, "q": self.q, "clients": clients, "gap": self.gap, "at_zero": self.at_zero}

    @staticmethod
    def from_json(kept: dict[str, Any]) -> "Stress":
        clients = {k: WorstCase(**c) for k, c in kept["clients"].items()}
        return Stress(kept["value"], kept["q"], clients, kept.get("gap"), kept.get("at_zero"))


@partial(jax.jit, static_argnames=("ball",))
def _closed(ball: Ball, w: Array, x: Array, y: Array, share: Array, radius: Radius) -> tuple[Array, Array]:
    return closed.worst_case(ball, w, x, y, share, radius)


def worst_case_loss(
    w: Any,
    data: Any,
    radius: float,
    *,
    loss: Loss,
    kappa: float = float("inf"),
    metric: str = "l1",
    support: Any = None,
    intercept: bool = False,
) -> float:
    """The largest mean loss of the model xᵀw over all distributions within `radius` of the data.

    Args:
        w: the parameters, of any linear model.
        data: (X, y).
        radius: ρ, the Wasserstein radius; 0 gives the mean loss.
        loss: one of huber, epsilon_insensitive, pinball, hinge, smooth_hinge, logistic.
        kappa: κ, the cost of moving a label (by one, in regression; to the other class, in classification).
        metric: the norm of ‖x − x̂‖: "l1", "l2" or "linf".
        support: where samples may be: None, (low, high) or (C, d) for Cx <= d; hinge, epsilon_insensitive, pinball.
        intercept: whether the last column of X is a constant that does not move.
    """
    return worst_case(
        w, data, radius, loss=loss, kappa=kappa, metric=metric, support=support, intercept=intercept, moves=False
    ).value


def worst_case(
    w: Any,
    data: Any,
    radius: float,
    *,
    loss: Loss,
    kappa: float = float("inf"),
    metric: str = "l1",
    support: Any = None,
    intercept: bool = False,
    share: Any = None,
    moves: bool = True,
    height: int = 0,
) -> WorstCase:
    """The worst case of the model xᵀw as `worst_case_loss` has it, with λ and, where it is known, the distribution.

    `share` are the samples' weights, alike without; data of at most `height` rows share one compiled program.
    """
    if metric not in closed.DUAL:
        raise FoedusError(f"The 'metric' argument must be 'l1', 'l2' or 'linf'. Got {metric!r} instead.")
    if not radius >= 0 or not kappa > 0:
        raise FoedusError(f"radius must be >= 0 and kappa > 0. Got {radius!r} and {kappa!r} instead.")
    if support is not None and not is_support(support):
        raise FoedusError(f"support must be None, (low, high) or (C, d). Got {support!r} instead.")
    ball = Ball(as_loss(loss), metric, kind_of(support), intercept)
    ball.check()
    stacked = stack([data])
    x, y = (np.asarray(stacked.arrays[key], dtype=float)[0] for key in ("x", "y"))
    w = np.asarray(w, dtype=float)
    if w.shape != x.shape[1:]:
        raise FoedusError(f"w must have one entry for each of {x.shape[1]} columns of X. Got shape {w.shape} instead.")
    share = np.full(len(y), 1.0 / len(y)) if share is None else np.asarray(share, dtype=float)
    width = x.shape[1] - intercept
    rows = filled(x, y, share, height=height)
    nominal = float(mean_loss(ball.loss, jnp.asarray(w), *rows))
    low = high = C = d = np.zeros(0)
    if support is not None:
        low, high, C, d = sides("argument", support, ball, width)
        check_inside(x[:, :width], y, C, d)
    if radius == 0:
        return WorstCase(nominal, nominal, float("inf"), 0.0, still(x, y, share, nominal) if moves else None)
    at = Radius(*(jnp.asarray(v, dtype=float) for v in (radius, kappa, low, high)))
    if not ball.closed:
        form = Form(ball, flips=bool(np.isfinite(kappa)))
        # no loss is negative, so that v is drawn down to the worst case
        below, within = jnp.asarray(-1.0), (jnp.asarray(C), jnp.asarray(d))
        found = polyhedron.project(form, *rows, at, *within, below, jnp.asarray(w), fixed=True)
        if not (float(found.gap) <= 1e-6 and float(found.residual) <= 1e-6):
            raise FoedusError(
                "the worst case over the support (C, d) was not found to 1e-6; scale X, and C and d with it, "
                "to numbers of like size."
            )
        spread = attaining_in_polyhedron(ball, w, x, y, share, at, found, C, d) if moves else None
        return WorstCase(float(found.v), nominal, float(found.lam), float(radius), spread)
    found, lam = (float(v) for v in _closed(ball, jnp.asarray(w), *rows, at))
    known = moves and isinstance(ball.loss, PIECEWISE_LINEAR)
    spread = attaining(ball, w, x, y, share, at, lam) if known else None
    return WorstCase(found, nominal, lam, float(radius), spread)


def stress(problem: Problem, w: Any, algorithm: Minimax) -> Stress:
    """What a robust algorithm guards against, at any model w: every client's worst case, and the weights that hurt."""
    terms, w, loss = problem.terms, np.asarray(w, dtype=float), problem.terms.loss
    assert loss is not None
    radii = np.broadcast_to(np.asarray(algorithm.radius, dtype=float), terms.clients)
    support = algorithm.support if np.any(radii > 0) else None
    names, q_hat = problem.names, algorithm.weights(problem)
    data = {**problem.data, "share": jax.vmap(terms.share)(problem.data)}
    x, y, share = (np.asarray(data[key]) for key in ("x", "y", "share"))
    sites = [(x[i, :n], y[i, :n], share[i, :n]) for i, n in enumerate(problem.counts)]

    def at(x: np.ndarray, y: np.ndarray, share: np.ndarray, radius: float) -> WorstCase:
        return worst_case(
            w, (x, y), radius, loss=loss, kappa=algorithm.kappa, metric=algorithm.metric, support=support,
            intercept=algorithm.intercept, share=share, height=max(problem.counts),
        )  # fmt: skip

    own = np.zeros(terms.clients) if algorithm.shared else radii
    values = {name: at(*site, float(radius)) for name, site, radius in zip(names, sites, own, strict=True)}
    if algorithm.shared:  # one ball around the mixture: its worst case is that of the pooled samples
        weighted = [(x, y, q * share) for q, (x, y, share) in zip(q_hat, sites, strict=True)]
        x, y, share = (np.concatenate(part) for part in zip(*weighted, strict=True))
        whole = at(x, y, share, float(radii[0]))
        found = Stress(whole.value, dict(zip(names, q_hat.tolist(), strict=True)), values | {"the mixture": whole})
        return measured(found, problem, w, algorithm, [(x, y, share)], radii[:1], np.ones(1))
    q = heaviest(np.array([values[name].value for name in names]), q_hat, algorithm.theta, algorithm.p)
    total = float(sum(weight * values[name].value for name, weight in zip(names, q, strict=True)))
    found = Stress(total, dict(zip(names, q.tolist(), strict=True)), values)
    return measured(found, problem, w, algorithm, sites, radii, q_hat)


def measured(
    found: Stress, problem: Problem, w: np.ndarray, algorithm: Minimax, sites: list[tuple[np.ndarray, ...]],
    rho: np.ndarray, q_hat: np.ndarray,
) -> Stress:  # fmt: skip
    """A worst case with its duality gap, unless the support is bounded or there are very many rows."""
    terms, ball = problem.terms, algorithm.ball(problem.terms)
    x, y, share = (np.concatenate(part).astype(float) for part in zip(*sites, strict=True))
    site = np.repeat(np.arange(len(sites)), [len(y) for _, y, _ in sites])
    theta = 0.0 if algorithm.shared else float(algorithm.theta)
    kappa, h = float(algorithm.kappa), terms.regularizer
    game = robust_bound.Game(ball, x, y, site, share, rho, kappa, q_hat, theta, algorithm.p, h)
    zero = robust_bound.at_zero(game)
    found = replace(found, at_zero=zero if np.isfinite(zero) else None)
    if ball.support != "everything" or len(y) > robust_bound.MOST_ROWS or not np.all(np.isfinite(w)):
        return found
    total = found.value + float(h.value(jnp.asarray(w)))
    return replace(found, gap=max(total - robust_bound.lower_bound(game, w, total, zero), 0.0))


@dataclass(frozen=True)
class WorstCaseMean:
    """A worst-case mean loss as a smooth function of (w, data), for objectives and constraints of any algorithm.

    With the ℓ2 metric and labels that stay, the worst case over a ball of fixed radius around the samples in `where` is
    mean loss + ρ·L·‖w‖₂ for the smooth losses (Corollaries B.1, B.5, B.6). The norm is taken as √(‖w‖² + 1e-12), at
    most 1e-6 above it, so that it has derivatives at 0: what is promised is an upper bound of the worst case.
    """

    loss: Loss
    radius: float
    where: Any = None
    intercept: bool = False
    at_most: float = 0.0

    def __call__(self, w: Array, data: Any) -> Array:
        ball = Ball(self.loss, "l2", intercept=self.intercept)
        mask = None if self.where is None else self.where(data)
        size = jnp.sqrt(jnp.sum(ball.moving(w) ** 2) + 1e-12)
        mean = data.mean(self.loss.value(data["x"] @ w, data["y"]), mask)
        return mean + self.radius * ball.lipschitz * size - self.at_most


def worst_case_mean(loss: Loss, radius: float, *, where: Any = None, intercept: bool = False) -> WorstCaseMean:
    """The worst-case mean loss over `where`, for `Problem(objective=...)`; ℓ2 metric, labels stay."""
    if not isinstance(loss, losses.Logistic | losses.SmoothHinge | losses.Huber):
        name = getattr(loss, "name", loss)
        raise FoedusError(f"worst_case_mean takes a smooth loss: logistic, smooth_hinge or huber. Got {name} instead.")
    if not radius >= 0:
        raise FoedusError(f"The 'radius' of worst_case_mean must be a number >= 0. Got {radius!r} instead.")
    return WorstCaseMean(loss, float(radius), where, intercept)


def worst_case_cap(where: Any, at_most: float, radius: float, *, loss: Loss = losses.logistic, intercept: bool = False):
    """A cap on the worst-case mean loss over `where`, at every client: Neyman-Pearson for data that will differ."""

    rows = replace(worst_case_mean(loss, radius, where=where, intercept=intercept), at_most=float(at_most))
    return Custom(rows, name=f"worst-case loss on {where} less its cap {at_most:g}", is_convex=True)
