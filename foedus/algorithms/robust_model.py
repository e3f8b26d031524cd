"""The model that DRFL, AFL and WAFL solve: a minimax over clients' weights and balls around their data.

    minimise over w  max over q in Q  Σ_s q_s · sup over P_s in a Wasserstein ball of radius ρ_s of E[L],
    Q = {q in the simplex, ‖q − q̂‖_p ≤ θ}

It is solved by splitting in minimax.py, and by an interior-point method in interior/robust_interior.py.
"""

# pyright: reportIncompatibleVariableOverride=false
import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError
from foedus.base.pytrees import device_array
from foedus.base.settings import setting, settings
from foedus.numerics.interpreter.dispatch import play
from foedus.problem.losses import LeastSquares
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import name_of, refuse
from foedus.robust.closed import Ball
from foedus.robust.form import EpigraphForm
from foedus.robust.proposal import Proposal
from foedus.robust.stress import Robust, Stress, Threat, stress
from foedus.robust.support import Support, kind_of, support_arrays

LEAST_RADIUS = 1e-9  # of a ball beside wider ones: with a radius of 0 its λ would be unbounded


def _mask(terms: Terms, data: Data) -> Array:
    """1 for the examples that count in f_i, and 0 for the others."""
    return jnp.ones_like(data["weight"]) if terms.where is None else terms.where(data).astype(float)


@settings
class RobustModel(Robust):
    """What DRFL, AFL and WAFL have in common, whichever method solves it."""

    method: str | None = setting(
        None,
        "'interior': an interior-point method, a round being an iteration; 'splitting': the paper's way, to which c, "
        "adapt, splitting, constants and sample belong. None: 'interior' where it takes the problem, up to 500 columns",
        choices=(None, "interior", "splitting"),
    )
    tol: float = setting(
        1e-7,
        "relative distance to the optimum at which a run ends, as the method estimates it: 'splitting' by the largest "
        "primal and dual residual of program (5)",
        gt=0,
    )
    q_hat: str = setting("size", "q̂: by the number of samples, or 1/S", choices=("size", "uniform"))

    # DRFL, AFL and WAFL turn some of these into settings
    radius: ClassVar[float | Sequence[float]] = 0.0
    kappa: ClassVar[float] = math.inf
    theta: ClassVar[float] = 0.0
    p: ClassVar[int | str] = 1
    metric: ClassVar[str] = "l1"
    support: ClassVar[Support] = None
    intercept: ClassVar[bool] = False
    sample: ClassVar[float | None] = None
    shares_lambda: ClassVar[bool] = False  # whether λ is the server's, as WAFL's

    # --- the static part: two algorithms that agree in it share one compiled program ---

    @property
    def robust(self) -> bool:
        """Whether any ball has a positive radius."""
        return bool(np.any(np.asarray(self.radius) > 0))

    @property
    def kind(self) -> str:
        """The kind of support; it does not matter where no sample moves."""
        return kind_of(self.support) if self.robust else "everything"

    def _compile_key(self) -> tuple[object, ...]:
        """The settings that are constants of the compiled program, and what it depends on of those that travel."""
        values = tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.compare)
        return (*values, self.robust, self.kind, bool(np.isfinite(self.kappa)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RobustModel) and type(self) is type(other) and self._compile_key() == other._compile_key()
        )

    def __hash__(self) -> int:
        return hash(self._compile_key())

    # --- the problem as it is run ---

    def ball(self, terms: Terms) -> Ball:
        """The kind of ball around a client's data, without its size."""
        assert terms.loss is not None
        return Ball(terms.loss, self.metric, self.kind, self.intercept)

    def form(self, terms: Terms) -> EpigraphForm:
        """The program that a client solves."""
        return EpigraphForm(self.ball(terms), self.robust, bool(np.isfinite(self.kappa)), self.shares_lambda)

    def check(self, terms: Terms) -> None:
        """Raise where the model does not fit the problem."""
        refuse(self, terms, regularizer=False)
        if terms.loss is None:
            raise FoedusError(f"{name_of(self)} needs a loss of xᵀw, with which the worst case is known: give loss=.")
        if terms.penalty is not None:
            raise FoedusError(f"{name_of(self)} does not take a penalty; the radius already holds w back.")
        if terms.weights is not None:
            raise FoedusError(f"{name_of(self)} weighs clients by its own q_hat; leave weights= of the problem out.")
        if isinstance(terms.loss, LeastSquares):
            raise FoedusError(f"{name_of(self)}: least_squares has no finite worst case; use losses.huber(eps).")
        self.ball(terms).check()
        if isinstance(self.radius, tuple) and len(self.radius) != terms.clients:
            raise FoedusError(
                f"The 'radius' setting of {name_of(self)} must have one entry for each of {terms.clients} clients. "
                f"Got {len(self.radius)} instead."
            )

    def stated(self, problem: Problem) -> Problem:
        """The problem with its arrays; a site, which checks before it opens its data, gets them with the terms."""
        return self.restate(problem) if "x" in problem.data else problem

    def weights(self, problem: Problem) -> np.ndarray:
        """The nominal weights q̂: every client's share of the samples that count, or 1/S."""
        n = problem.terms.clients
        counts = play(jax.vmap(lambda d: jnp.sum(d["weight"] * _mask(problem.terms, d))), problem.data)
        sizes = np.asarray(counts) if self.q_hat == "size" else np.ones(n)
        return sizes / sizes.sum()

    def restate(self, problem: Problem) -> Problem:
        """The problem with ρ, κ and the support beside each client's data, and θ and q̂ at the server."""
        n, width = problem.terms.clients, problem.terms.dim - self.intercept
        rho = np.broadcast_to(np.asarray(self.radius, dtype=float), n)
        rho = np.maximum(rho, LEAST_RADIUS) if self.robust else rho
        own = {"robust.rho": rho, "robust.kappa": np.full(n, self.kappa)}
        own |= support_arrays(f"setting of {name_of(self)}", self.support, self.ball(problem.terms), problem, width)
        own["robust.share"] = self.weights(problem)
        server_arrays = {**self.server_data(problem.terms), "robust.q_hat": self.weights(problem)}
        data = Data({**problem.data, **{k: device_array(v) for k, v in own.items()}})
        numbers = {k: np.asarray(v, dtype=float) for k, v in server_arrays.items()} | {"weight": np.ones(1)}
        server = Data({k: device_array(v) for k, v in numbers.items()})
        return problem.with_data(data, server)

    def server_data(self, terms: Terms) -> Data:
        """The numbers that the server holds, with equal weights q̂."""
        numbers: dict[str, ArrayLike] = {"robust.theta": self.theta, "robust.price": self.cost}
        numbers |= {"robust.kappa": self.kappa, "robust.q_hat": np.full(terms.clients, 1.0 / terms.clients)}
        return Data({k: device_array(np.asarray(v, dtype=float)) for k, v in numbers.items()})

    @property
    def cost(self) -> float:
        """The price ρ of the shared λ in the objective; 0 where λ is the clients'."""
        return 0.0

    def stress(self, problem: Problem, w: np.ndarray, proposals: Sequence[Proposal] | None = None) -> Stress:
        """The worst case of the returned model, client by client."""
        return stress(problem, w, self.threat(problem), proposals)

    def threat(self, problem: Problem) -> Threat:
        """What the algorithm guards against on this problem."""
        return Threat(
            radius=self.radius,
            q_hat=self.weights(problem),
            kappa=self.kappa,
            theta=self.theta,
            p=self.p,
            metric=self.metric,
            support=self.support,
            intercept=self.intercept,
            mixture=self.shares_lambda,
        )
