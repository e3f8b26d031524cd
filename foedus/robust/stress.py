"""The worst case of a federation: over a ball around every client's data, and over the clients' weights.

`Threat` is the set of changes that an algorithm guards against. `stress` measures any model against it, with the
duality gap that says how far the model is from the best possible one.
"""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NotRequired, TypedDict

import jax
import numpy as np

from foedus.base.engine import float64
from foedus.base.notebook import at_most, text_table
from foedus.base.pytrees import PyTree
from foedus.numerics.interpreter.dispatch import play
from foedus.problem.losses import Loss
from foedus.problem.problem import Problem
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm
from foedus.robust import bound, proposal
from foedus.robust.closed import Ball
from foedus.robust.proposal import Proposal, Sides, as_one_site, cut_rows
from foedus.robust.support import Support, kind_of
from foedus.robust.support import sides as sides_of
from foedus.robust.weights import heaviest
from foedus.robust.worst_case import WorstCase, worst_case

SMALL_GAP = 1e-3  # relative to the worst case: a difference that no figure of a report shows
SEARCH = 1e-4  # a relative gap of the proposals above which a better adversary is searched for
LEAST_SCALE = 1e-2  # of the worst case of w = 0: where the optimum is nearly 0, no gap would be small relative to it


class ClientFigures(TypedDict):
    """A client's `WorstCase` as JSON, without the distribution."""

    value: float
    nominal: float
    lam: float
    radius: float


class StressFigures(TypedDict):
    """A `Stress` as JSON."""

    value: float
    q: dict[str, float]
    clients: dict[str, ClientFigures]
    gap: NotRequired[float | None]
    at_zero: NotRequired[float | None]


@dataclass(frozen=True)
class Stress:
    """The worst case over clients' data and weights: its value, the weights q that attain it, and each client's own.

    `gap` bounds the excess of the objective, the worst case with the regulariser, over the least that any model has; it
    is None where it was not measured. `at_zero` is at least the objective of the model w = 0.
    """

    value: float
    q: dict[str, float]
    clients: dict[str, WorstCase] = field(default_factory=dict)
    gap: float | None = None
    at_zero: float | None = None

    def judge(self, reason: str) -> tuple[bool, str]:
        """Whether a run whose own stopping test held is called converged, and the reason, with the measured gap."""
        if not np.isfinite(self.value):
            return False, f"the stopping test holds, but the worst case is {self.value:g}; standardise the columns of X"
        zero = np.inf if self.at_zero is None else self.at_zero
        if self.gap is None:
            if self.value > (1.0 + SMALL_GAP) * zero:
                return False, (
                    f"the stopping test holds ({reason}), but the worst case is {self.value:.4g}, and that of the "
                    f"model w = 0 is at most {zero:.4g}; standardise the columns of X"
                )
            return True, f"{reason}; the duality gap was not measured"
        floor = LEAST_SCALE * zero if np.isfinite(zero) else 0.0
        if self.gap <= SMALL_GAP * max(self.value, floor):
            return True, f"{reason}; duality gap {self.gap:.2g}"
        return False, (
            f"the stopping test holds ({reason}), but the worst case {self.value:.4g} may be {self.gap:.4g} above the "
            "best possible; standardise the columns of X, or ask for a smaller tol"
        )

    @property
    def optimality(self) -> str:
        """How far the objective is from the best possible one, in words."""
        if self.gap is None:
            return "duality gap not measured"
        return f"at most {at_most(self.gap)} above the best possible worst case"

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
        head = f"worst case: {self.value:.6g}, measured at the returned w over all sites; {self.optimality}"
        return "\n".join([head, *text_table(titles, rows)])

    def to_json(self) -> StressFigures:
        """The figures alone: the worst-case distribution is data, and is not stored."""
        clients = {
            name: ClientFigures(value=c.value, nominal=c.nominal, lam=c.lam, radius=c.radius)
            for name, c in self.clients.items()
        }
        return {"value": self.value, "q": self.q, "clients": clients, "gap": self.gap, "at_zero": self.at_zero}

    @staticmethod
    def from_json(figures: StressFigures) -> "Stress":
        """The inverse of `to_json`."""
        clients = {k: WorstCase(**c) for k, c in figures["clients"].items()}
        return Stress(figures["value"], figures["q"], clients, figures.get("gap"), figures.get("at_zero"))


class Robust(Algorithm):
    """An algorithm that guards against a worst case, and measures it at the model it returns."""

    def stress(self, problem: Problem, w: np.ndarray, proposals: Sequence[Proposal] | None = None) -> Stress:
        """The worst case of the model w that the algorithm guards against; `proposals` are those of `propose`."""
        raise NotImplementedError

    def propose(self, terms: Terms, server: PyTree, clients: Sequence[PyTree]) -> list[Proposal] | None:
        """What the worst case does at each client, from the states after the last round; None where they do not say."""
        return None


@dataclass(frozen=True)
class Threat:
    """The changes that a model is guarded against: a ball around each client's data, and weights of the clients.

    With `mixture` there is one ball around the mixture of all data with weights q̂, and θ and p are not used.
    """

    radius: float | Sequence[float]
    q_hat: np.ndarray  # q̂, the nominal weights
    kappa: float = math.inf
    theta: float = 0.0
    p: float | str = 1
    metric: str = "l1"
    support: Support = None
    intercept: bool = False
    mixture: bool = False

    def ball(self, loss: Loss) -> Ball:
        """The kind of ball, without its size; no support matters where no sample moves."""
        moves = bool(np.any(np.asarray(self.radius) > 0))
        return Ball(loss, self.metric, kind_of(self.support) if moves else "everything", self.intercept)


@float64()
def stress(problem: Problem, w: np.ndarray, threat: Threat, proposals: Sequence[Proposal] | None = None) -> Stress:
    """The worst case of the model w, with every client's own and the weights q that attain it.

    Args:
        problem: the clients' data and the terms; the loss must be one of those with a known worst case.
        w: the parameters of a linear model.
        threat: the balls and the weights over which the worst case is taken.
        proposals: what an adversary does at each client, from which the duality gap is measured; where they are left
            out it is searched for, unless the support is bounded.

    Returns:
        The worst case with its duality gap, where that can be measured.
    """
    terms, w, loss = problem.terms, np.asarray(w, dtype=float), problem.terms.loss
    assert loss is not None
    radii = np.broadcast_to(np.asarray(threat.radius, dtype=float), terms.clients)
    support = threat.support if np.any(radii > 0) else None
    names, q_hat = problem.names, threat.q_hat
    data = {**problem.data, "share": play(jax.vmap(terms.share), problem.data)}
    x, y, share = (np.asarray(data[key]) for key in ("x", "y", "share"))
    sites = [(x[i, :n], y[i, :n], share[i, :n]) for i, n in enumerate(problem.counts)]

    def at(site: tuple[np.ndarray, np.ndarray, np.ndarray], radius: float) -> WorstCase:
        x, y, share = site
        return worst_case(
            w, (x, y), radius, loss=loss, kappa=threat.kappa, metric=threat.metric, support=support,
            intercept=threat.intercept, share=share, height=max(problem.counts),
        )  # fmt: skip

    if proposals is not None:
        proposals = [cut_rows(p, n) for p, n in zip(proposals, problem.counts, strict=True)]
    own = np.zeros(terms.clients) if threat.mixture else radii
    # where there is no closed form a compiled program runs for each site, and the first site compiles it for all
    first = at(sites[0], float(own[0]))
    with ThreadPoolExecutor(1 if threat.ball(loss).has_closed_form else os.cpu_count()) as threads:
        others = threads.map(at, sites[1:], own[1:].tolist())
        values = dict(zip(names, (first, *others), strict=True))
    if threat.mixture:  # the worst case of one ball around the mixture is that of the pooled samples
        weighted_sites = [(x, y, q * share) for q, (x, y, share) in zip(q_hat, sites, strict=True)]
        x, y, share = (np.concatenate(part) for part in zip(*weighted_sites, strict=True))
        whole = at((x, y, share), float(radii[0]))
        result = Stress(whole.value, dict(zip(names, q_hat.tolist(), strict=True)), values | {"the mixture": whole})
        pooled_threat = replace(threat, theta=0.0, q_hat=np.ones(1))
        proposals = None if proposals is None else as_one_site(proposals)
        return with_gap(result, problem, w, pooled_threat, [(x, y, share)], radii[:1], proposals)
    q = heaviest(np.array([values[name].value for name in names]), q_hat, threat.theta, threat.p)
    total = float(sum(weight * values[name].value for name, weight in zip(names, q, strict=True)))
    result = Stress(total, dict(zip(names, q.tolist(), strict=True)), values)
    return with_gap(result, problem, w, threat, sites, radii, proposals)


def with_gap(
    result: Stress, problem: Problem, w: np.ndarray, threat: Threat, sites: list[tuple[np.ndarray, ...]],
    rho: np.ndarray, proposals: Sequence[Proposal] | None,
) -> Stress:  # fmt: skip
    """The worst case with its duality gap: from proposals, or by a search where samples may be anywhere."""
    assert problem.terms.loss is not None
    ball, h = threat.ball(problem.terms.loss), problem.terms.regularizer
    x, y, share = (np.concatenate(part).astype(float) for part in zip(*sites, strict=True))
    site = np.repeat(np.arange(len(sites)), [len(y) for _, y, _ in sites])
    game = bound.Game(ball, x, y, site, share, rho, float(threat.kappa), threat.q_hat, float(threat.theta), threat.p, h)
    zero = bound.at_zero(game)
    result = replace(result, at_zero=zero if np.isfinite(zero) else None)
    if not np.all(np.isfinite(w)):
        return result
    total = result.value + float(play(h.value, w))
    horizon, lower = bound.Horizon.of(game, w, min(total, zero)), -np.inf
    if len(y) * (x.shape[1] + len(sites)) > proposal.MOST_NUMBERS:
        proposals = None
    if ball.support != "everything":
        if proposals is None:
            return result
        assert threat.support is not None
        low, high, C, d = sides_of("setting", threat.support, ball, x.shape[1] - ball.intercept)
        lower = proposal.lower_bound(game, w, horizon, proposals, Sides(C, d, low, high))
    elif proposals is not None:
        lower = proposal.lower_bound(game, w, horizon, proposals)
    if ball.support == "everything" and total - lower > SEARCH * total and len(y) <= bound.MOST_ROWS:
        lower = max(lower, bound.lower_bound(game, w, total, zero))
    return replace(result, gap=max(total - lower, 0.0) if np.isfinite(lower) else None)
