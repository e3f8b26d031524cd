"""How an algorithm declares its private form: as `Releasing`, or as `NotPrivate` with the reason why there is none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree
from foedus.privacy.budget import Budget
from foedus.privacy.clipping import check_examples
from foedus.privacy.noise import Noise, Sound
from foedus.privacy.total import ROUNDS, Local, usual_clip
from foedus.problem.problem import Problem
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm, name_of


class Releasing(Algorithm):
    """An algorithm whose clients can add noise to what they send."""

    noise: Noise | None

    def with_noise(self, noise: Noise, problem: Problem) -> Algorithm:
        """Return the algorithm in its private form."""
        raise NotImplementedError

    @property
    def needs_rows(self) -> bool:
        """Whether the sensitivity of a release rests on a bound on the rows of X."""
        return False

    def usual_clip(self, terms: Terms, columns: int) -> float:
        """The clip of a run with a total where nobody says; a column of words counts once among `columns`."""
        return usual_clip(columns)

    def private_rounds(self, problem: Problem) -> int | None:
        """How many rounds a run with a total plays where nobody says; None: the usual number."""
        return None

    def release_record(self, clients: PyTree) -> Mapping[str, Array]:
        """Return what the simulator notes of the clients' states after a round, for the ledger; none of it is sent."""
        return {}


class NotPrivate(Algorithm):
    """An algorithm that has no private form, for a stated reason."""

    why_not_private: ClassVar[str]

    def privacy_refusal(self, terms: Terms) -> str:
        """Return why the algorithm has no private form, to go at the end of a sentence."""
        return self.why_not_private


def noise_of(algorithm: Algorithm) -> Noise | None:
    """Return the noise that the algorithm's clients add, or None."""
    return algorithm.noise if isinstance(algorithm, Releasing) else None


def sound_noise(algorithm: Algorithm) -> Sound | None:
    """Return the noise that the algorithm's clients add if it comes with a guarantee, else None."""
    noise = noise_of(algorithm)
    return noise if isinstance(noise, Sound) else None


def make_private(
    algorithm: Algorithm, privacy: Local | Noise | None, budget: Budget | float | None, problem: Problem, rounds: int
) -> Algorithm:
    """Return the algorithm with this noise and budget, or with the noise that keeps a total over so many rounds."""
    if problem.rules is not None and problem.rules.missing != "mean":
        raise FoedusError(
            f"the rows were prepared with missing={problem.rules.missing!r}, so that a client's number of examples "
            "depends on what is in them; prepare them with missing='mean' for a private run."
        )
    if isinstance(privacy, Local):
        if budget is not None:
            raise FoedusError(f"{privacy.name} is a total already; leave the budget out.")
        needs_rows = isinstance(algorithm, Releasing) and algorithm.needs_rows
        if privacy.clip is None and problem.terms.loss is not None and isinstance(algorithm, Releasing):
            privacy = replace(privacy, clip=algorithm.usual_clip(problem.terms, problem.terms.dim))
        privacy = privacy.noise_for(problem, rounds, needs_rows=needs_rows)
    noise = noise_of(algorithm) if privacy is None else privacy
    if not isinstance(noise, Noise):
        argument = "privacy" if privacy is not None else "budget"
        remedy = (
            "fd.Local(...), fd.Laplace(...) or fd.Gaussian(...)" if privacy is not None else "privacy= to spend it on"
        )
        raise FoedusError(f"The {argument!r} argument of solve needs {remedy}. Got {noise!r} instead.")
    if privacy is not None and noise_of(algorithm) is not None:
        raise FoedusError(f"{name_of(algorithm)} has noise= already; give it there or as privacy=, not both.")
    if budget is not None:
        if not isinstance(noise, Sound):
            raise FoedusError(f"a budget needs noise with a guarantee; {type(noise).__name__} has none.")
        noise = (budget if isinstance(budget, Budget) else Budget(budget)).limit(noise)
    if isinstance(algorithm, Releasing):
        return algorithm.with_noise(noise, problem)
    if not isinstance(noise, Sound):
        raise only_for_paper(noise)
    why = "no bound on what one example changes in its replies is proved"
    if isinstance(algorithm, NotPrivate):
        why = algorithm.privacy_refusal(problem.terms)
    raise FoedusError(f"{name_of(algorithm)} has no private form: {why}.")


def only_for_paper(noise: Noise) -> FoedusError:
    """Return the error for noise without a guarantee that is given to an algorithm of another paper."""
    return FoedusError(f"{type(noise).__name__} is for FedEPM, SFedAvg and SFedProx; use Laplace or Gaussian.")


def check_weights(algorithm: Algorithm, terms: Terms) -> None:
    """Raise where clients weigh differently and noise is calibrated to what one row adds to an f_i that weighs 1/n."""
    if terms.weights is not None and noise_of(algorithm) is not None:
        raise FoedusError(
            f"{name_of(algorithm)} with noise bounds what one row changes where every client weighs the same; "
            "leave weights= out, or the noise."
        )


def check_data(problem: Problem, algorithm: Algorithm, w0: ArrayLike) -> None:
    """Check what can be checked only with the data at hand, before the first round."""
    if sound_noise(algorithm) is not None:
        check_examples(problem, jnp.asarray(w0))


def rounds_of(privacy: object, algorithm: Algorithm, problem: Problem) -> int:
    """Return how many rounds are played where nobody says: few with a total, for each takes its share of it."""
    if isinstance(privacy, Noise | Local) and isinstance(algorithm, Releasing):
        own = algorithm.private_rounds(problem)
        if own is not None:
            return own
    return ROUNDS if isinstance(privacy, Local) else algorithm.fit(problem).max_rounds
