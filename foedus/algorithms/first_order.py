"""What first-order methods share: the step size, the greeting that finds it, and the stopping test on ∇f.

A client's first local gradient is taken at the received model anyway; sending it (and the value) along lets the server
test ‖∇f(w)‖² ≤ tol, GIA's rule (35), at a point everybody has just evaluated.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Algorithm, Present
from foedus.errors import FoedusError
from foedus.pytrees import state
from foedus.settings import setting, settings
from foedus.terms import Data, Terms


@state
class Seen:
    """A client's view of the received model: f_i(w), and ∇f_i(w) where the stopping test needs it."""

    f: Array
    g: Any  # an array, or () without a stopping test


@state
class Progress:
    """The server's record of the last broadcast model: f(w), the stopping test's left side, and if all answered."""

    objective: Array
    error: Array
    complete: Array

    @staticmethod
    def none() -> "Progress":
        return Progress(jnp.full((), jnp.inf), jnp.full((), jnp.inf), jnp.zeros((), bool))


@state
class Greeting:
    """The first reply when constants are to be found: r_i, the number of examples d_i, and the view of w0."""

    r: Array
    count: Array
    seen: Seen


@settings
class FirstOrder(Algorithm):
    """Settings and functions common to gradient methods; a method adds its own local step."""

    tol: float = setting(1e-7, "tolerance of the stopping test, GIA (35)", ge=0)
    stop: str | None = setting(
        "gradient",
        "'gradient': ‖∇f‖² <= tol, GIA (35); 'released': ‖∇f‖²/n² <= tol, as the authors' code; None: no test",
        choices=("gradient", "released", None),
    )

    def check(self, terms: Terms) -> None:
        super().check(terms)
        if terms.loss is not None and terms.loss.curvature is None and self.automatic:
            raise FoedusError(
                f"{self.name}: the loss {terms.loss.name} has no bounded curvature to set the step from; "
                "give the step size, or a smooth loss."
            )

    @property
    def automatic(self) -> bool:
        """Whether a greeting round has to find the constants."""
        return False

    def look(self, terms: Terms, w: Array, data: Data) -> tuple[Seen, Array]:
        """f_i and ∇f_i at the received model, as the reply carries them and as the local step uses them."""
        f, g = terms.value_and_gradient(w, data)
        return Seen(f, g if self.stop is not None else ()), g

    def judge(self, terms: Terms, mean_seen: Seen, complete: Array) -> Progress:
        if self.stop is None:
            return Progress(mean_seen.f, jnp.full((), jnp.inf), complete)
        error = jnp.sum(mean_seen.g**2)
        return Progress(mean_seen.f, error / terms.clients**2 if self.stop == "released" else error, complete)

    def passed(self, progress: Progress) -> Array:
        return progress.complete & (progress.error <= self.tol)

    def settle(self, progress: Progress, w: Array, following: Array) -> Array:
        """The next model, or the present one where it has passed the test: that is the one to return."""
        return jnp.where(self.passed(progress), w, following)

    def converged(self, server: Any) -> Array:
        return self.passed(server.progress)

    def report(self, server: Any) -> dict[str, Array]:
        return {"objective": server.progress.objective, "gradient": server.progress.error}

    def reason(self, server: Any, converged: bool, names: list[str]) -> str:
        left = "‖∇f‖²/n²" if self.stop == "released" else "‖∇f‖²"
        if converged:
            return f"{left} = {float(server.progress.error):.2g} <= {self.tol:g}"
        if self.stop is None:
            return "played the rounds asked for"
        if not bool(server.progress.complete):
            return f"stopped at the limit of rounds; {left} <= {self.tol:g} is tested only when every client answers"
        return f"stopped at the limit of rounds with {left} = {float(server.progress.error):.2g} > {self.tol:g}"

    def greet(self, terms: Terms, w: Array, data: Data) -> Greeting:
        seen, _ = self.look(terms, w, data)
        return Greeting(terms.lipschitz(w, data), data.count, seen)


def complete(terms: Terms, present: Present) -> Array:
    return present.count == terms.clients
