"""An audit runs a client many times on two neighbouring data sets, and bounds the true ε of its releases from below.

The auditor is the strongest one the definition allows: it knows both data sets, sends the messages itself, and sees
every release. It fits noise scales to half of the trials, takes the threshold on the ratio that is best there,
and counts on the other half. Clopper-Pearson limits turn the counts into a lower bound on ε that holds with the stated
confidence, whatever the mechanism is. A bound above the promised ε disproves the promise; one below proves nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms import FedAvg, FedEPM, FedGiA, FedProx, PrivateNewton, SFedAvg
from foedus.algorithms.private_newton import NewtonReply
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.privacy.central import NoiseShares
from foedus.privacy.composition import tightest
from foedus.privacy.noise import Gaussian, Laplace, PaperLaplace, Sound
from foedus.privacy.releasing import make_private, sound_noise
from foedus.privacy.total import Local
from foedus.problem.constraints import LossCap
from foedus.problem.losses import Loss, logistic
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.problem.terms import label as label_of
from foedus.protocol.algorithm import Algorithm, Kind
from foedus.runtime.spine import message_for

CONFIDENCE = 0.95

AuditNoise: TypeAlias = PaperLaplace | Sound
"""Noise that an audit can be about."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit: with this confidence the mechanism's true ε, at `delta`, is at least `epsilon`."""

    epsilon: float
    delta: float
    confidence: float
    trials: int  # on each data set, half of them for counting
    rounds: int


def releases(
    problem: Problem, algorithm: Algorithm, messages: np.ndarray, keys: Array, kind: int | None = None
) -> np.ndarray:
    """Return what the problem's first client sends in answer to the models `messages`, (rounds, dim), for every key.

    Returns an array (trials, rounds, numbers). The client is the algorithm's own `local`, noise included. `kind` is the
    number of the kind of round, None for the one in which the model is trained.
    """
    ready = algorithm.fit(problem).algorithm
    number = min(1, len(ready.kinds) - 1) if kind is None else kind
    return np.asarray(_answers(ready, problem.terms, number, problem.client(0), jnp.asarray(messages), keys))


@partial(jax.jit, static_argnames=("algorithm", "terms", "number"))
def _answers(algorithm: Algorithm, terms: Terms, number: int, data: Data, messages: Array, keys: Array) -> Array:
    server, first = algorithm.init(terms, messages[0], None), algorithm.join(terms, data, messages[0])
    draws = jnp.linspace(0.0, 1.0, terms.clients)
    kind: Kind = algorithm.kinds[number]
    noise = sound_noise(algorithm)

    def seen(reply: PyTree, spent: PyTree, key: Array) -> Array:
        """What is seen of a reply that depends on the client's data: the part that is summed, and the client's own."""
        own = reply.slots[0].ravel() if isinstance(reply, NewtonReply) else jnp.zeros(0)
        return jnp.concatenate([reply.z + others(reply.z, spent, key), own])

    def others(z: Array, spent: PyTree, key: Array) -> Array | float:
        """The shares of noise of the other clients that do not collude, which are in the sum that is seen."""
        if not isinstance(noise, NoiseShares):
            return 0.0
        shares, keys = noise, jax.random.split(key, noise.sites - noise.tolerate - 1)
        return jnp.sum(jax.vmap(lambda k: shares.release(jnp.zeros_like(z), spent.scale, k))(keys), axis=0)

    def trial(key: Array) -> Array:
        def step(client: PyTree, at: tuple[Array, Array]) -> tuple[PyTree, Array]:
            w, t = at
            message = message_for(kind.broadcast(terms, replace(server, w=w, round=t), draws), 0)
            client, reply = kind.local(terms, client, message, data, jax.random.fold_in(key, t))
            return client, seen(reply, client.spent, jax.random.fold_in(key, -1 - t))

        return jax.lax.scan(step, first, (messages, jnp.arange(len(messages))))[1]

    return jax.lax.map(trial, keys, batch_size=4096)


def audit(
    pair: tuple[Problem, Problem],
    make: Callable[[AuditNoise], Algorithm],
    noise: AuditNoise,
    messages: Sequence[Sequence[float]] | np.ndarray,
    *,
    kind: int | None = None,
    trials: int = 50_000,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Audit:
    """Bound ε of a client's releases from below.

    Args:
        pair: two problems whose first clients are neighbours; who else is there does not matter.
        make: the algorithm for a given noise.
        noise: the noise to audit.
        messages: the models that the client receives, one a round.
        kind: the number of the kind of round; None: the one in which the model is trained.
        trials: on each of the two data sets.
        delta: the δ at which ε is bounded.
        confidence: of the bound.
        seed: of the trials.

    Returns:
        The audit, with the bound.
    """
    models = np.asarray(messages, dtype=float)
    keys = jax.random.split(jax.random.key(seed), 2 * trials).reshape(2, trials)
    quiet = replace(noise, epsilon=1e12)  # hardly any noise: where the releases lie under each data set
    centres = [releases(problem, make(quiet), models, keys[0, :1], kind)[0] for problem in pair]
    samples = [releases(problem, make(noise), models, mine, kind) for problem, mine in zip(pair, keys, strict=True)]
    half = trials // 2
    scales = [
        np.maximum(np.mean(np.abs(z[:half] - c), axis=(0, 2)), 1e-12) for z, c in zip(samples, centres, strict=True)
    ]
    square = isinstance(noise, Gaussian)
    ratios = [_ratio(z, centres, scales, square) for z in samples]
    level = (1.0 - confidence) / 2.0  # one sentence for each of the two directions
    bounds = [
        _lower_bound(ratios[0], ratios[1], half, delta, level),
        _lower_bound(-ratios[1], -ratios[0], half, delta, level),
    ]
    return Audit(max(0.0, *bounds), delta, confidence, trials, len(models))


def _ratio(z: np.ndarray, centres: list[np.ndarray], scales: list[np.ndarray], square: bool) -> np.ndarray:
    """Return the log-likelihood ratio of each trial under the fitted noise, first data set over second."""

    def log_density(centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
        u = np.abs(z - centre) / scale[:, None]
        # for a normal law E|u| = √(2/π)σ, so that σ = scale·√(π/2)
        each = -(u**2) / math.pi if square else -u
        return np.sum(each - np.log(scale)[:, None], axis=(1, 2))

    return log_density(centres[0], scales[0]) - log_density(centres[1], scales[1])


def _lower_bound(high: np.ndarray, low: np.ndarray, half: int, delta: float, level: float) -> float:
    """Return the bound from the test 'the ratio is at least t', which is more likely under `high`.

    The threshold t is chosen on the first half of the trials and counted on the second, so that the choice does not
    bias the count.
    """
    candidates = np.unique(np.quantile(high[:half], np.linspace(0.0, 0.999, 200)))
    counts = [(np.sum(high[:half] >= t), np.sum(low[:half] >= t)) for t in candidates]
    best = max(range(len(candidates)), key=lambda i: _epsilon(*counts[i], half, delta, level))
    rest, t = len(high) - half, candidates[best]
    return _epsilon(np.sum(high[half:] >= t), np.sum(low[half:] >= t), rest, delta, level)


def _epsilon(yes: int, no: int, trials: int, delta: float, level: float) -> float:
    """Return ln((p − δ)/q) for the least p and the largest q that the counts allow, each at confidence 1 − level/2."""
    from scipy.stats import beta

    p = float(beta.ppf(level / 2, yes, trials - yes + 1)) if yes > 0 else 0.0
    q = float(beta.ppf(1 - level / 2, no + 1, trials - no)) if no < trials else 1.0
    return math.log((p - delta) / q) if p > delta else -math.inf


# --- pairs made to be hard ---


def opposite_pair(
    loss: Loss, dim: int = 3, examples: int = 2, size: float = 100.0, cap: float | None = None, clients: int = 1
) -> tuple[Problem, Problem]:
    """Return two problems whose first client's first example has a huge gradient, in opposite directions.

    Both are clipped to C along the same coordinate, so that the means differ by all of 2C/d; the other examples are 0.
    With a `cap`, on label 1, the example is in the capped group under one of them alone.
    """
    problems = []
    constraints = [] if cap is None else [LossCap(label_of(1), at_most=cap)]
    for label in (0.0, 1.0):
        x = np.zeros((examples, dim))
        x[0, 0] = size
        y = np.zeros(examples)
        y[0] = label
        y[1] = 1.0 if cap is not None else 0.0
        problems.append(Problem([(x, y)] * clients, loss=loss, constraints=constraints))
    return problems[0], problems[1]


def flipped_pair(loss: Loss, cap: float, dim: int = 3, size: float = 100.0) -> tuple[Problem, Problem]:
    """Return two problems whose first row, of the capped label 1, points in opposite directions.

    At a model whose first entry is 3/`size` its gradient is clipped in opposite directions, and its loss is nearly 0
    under one of them and beyond the cut of a small cap under the other: gradient and value move as far as they can.
    """
    problems = []
    for sign in (1.0, -1.0):
        x = np.zeros((2, dim))
        x[0, 0] = sign * size
        problems.append(
            Problem([(x, np.array([1.0, 0.0]))], loss=loss, constraints=[LossCap(label_of(1), at_most=cap)])
        )
    return problems[0], problems[1]


def turned_pair(loss: Loss, dim: int = 3, examples: int = 2, size: float = 100.0) -> tuple[Problem, Problem]:
    """Return two problems whose first row is long, along another column in each.

    The second moments of such rows are as far apart as those of two rows of the largest length can be.
    """
    problems = []
    for column in (0, 1):
        x = np.zeros((examples, dim))
        x[0, column] = size
        problems.append(Problem([(x, np.zeros(examples))] * (1 if examples < 1000 else 4), loss=loss))
    return problems[0], problems[1]


def shared_pair(loss: Loss) -> tuple[Problem, Problem]:
    """Return the opposite pair at four clients, with as many rows as noise in shares is of use for."""
    return opposite_pair(loss, examples=1000, clients=4)


def in_shares(plain: Algorithm) -> Callable[[AuditNoise], Algorithm]:
    """Return the private form of a method for noise in shares."""
    return lambda noise: make_private(plain, noise, None, shared_pair(logistic)[0], 1000)


def vanishing_pair(loss: Loss, dim: int = 3) -> tuple[Problem, Problem]:
    """Return two problems of one client whose gradients at 0 nearly cancel in one and add up in the other.

    Noise that is scaled with the client's own gradient is almost nothing under the first.
    """
    x = np.zeros((2, dim))
    x[:, 0] = 1.0, 1.000001
    return Problem([(x, np.array([0.0, 1.0]))], loss=loss), Problem([(x, np.array([1.0, 1.0]))], loss=loss)


@dataclass(frozen=True)
class Case:
    """A line of `foedus audit`: a mechanism, the pair it is tried on, and the ε promised for it."""

    what: str
    pair: tuple[Problem, Problem]
    make: Callable[[AuditNoise], Algorithm]
    noise: AuditNoise
    rounds: int
    weak: bool = False  # whether the audit is expected to disprove the nominal ε
    kind: int | None = None  # the number of the kind of round; None: the one in which the model is trained
    model: float = 0.0  # the entries of the models that the client receives

    def run(self, trials: int, seed: int = 0, confidence: float = CONFIDENCE) -> Audit:
        """Return the audit of this line."""
        models = np.full((self.rounds, self.pair[0].terms.dim), self.model)
        _, delta = self.promise()
        return audit(
            self.pair, self.make, self.noise, models, kind=self.kind, trials=trials, delta=delta, seed=seed,
            confidence=confidence,
        )  # fmt: skip

    def promise(self) -> tuple[float, float]:
        """Return ε and δ of all rounds: those of a total, or by the tightest composition at the δ of one release."""
        if not isinstance(self.noise, Sound):
            return self.noise.epsilon * self.rounds, 0.0
        if self.noise.total is not None:
            return self.noise.total
        ratio = 1.0 / self.noise.multiplier
        return tightest({(self.noise.kind.lower(), ratio): self.rounds}, self.noise.delta), self.noise.delta


def cases() -> list[Case]:
    """Return the mechanisms and pairs that `foedus audit` tries."""
    far = opposite_pair(logistic)
    near = vanishing_pair(logistic)
    # a small cap, so that a row of the group with a large loss is nearly as far from others as a row can be
    flipped, measured = flipped_pair(logistic, cap=0.05), opposite_pair(logistic, cap=0.05)
    turned, many_turned = turned_pair(logistic), turned_pair(logistic, examples=1000)

    def epm(k0: int, restart: bool = False) -> Callable[[AuditNoise], Algorithm]:
        return lambda noise: FedEPM(rho=1.0, stop=None, noise=noise, k0=k0, restart=restart)

    def private(plain: Algorithm) -> Callable[[AuditNoise], Algorithm]:
        return lambda noise: make_private(plain, noise, None, far[0], 1000)

    def capped(noise: AuditNoise) -> Algorithm:
        return make_private(PrivateNewton(rounds=3), noise, None, measured[0], 3)

    gauss, fourths = (
        Gaussian(epsilon=1.0, delta=1e-3, clip=1.0),
        NoiseShares(epsilon=1.0, delta=1e-3, clip=1.0, sites=4, tolerate=1, least_rows=1000),
    )

    one: Json = {"clip": 0.5, "rows": 1.0}  # at w = 0 the slope of the logistic loss is 1/2, so that clipping is tight
    return [
        Case("FedEPM, restart, Laplace", far, epm(k0=4, restart=True), Laplace(epsilon=1.0, clip=1.0), 1),
        Case("FedEPM, restart, Laplace, 4 rounds", far, epm(k0=4, restart=True), Laplace(epsilon=0.5, clip=1.0), 4),
        Case("FedEPM, carried state, Laplace, 4 rounds", far, epm(k0=4), Laplace(epsilon=0.5, clip=1.0), 4),
        Case("FedEPM, carried state, Gaussian", far, epm(k0=4), Gaussian(epsilon=1.0, delta=1e-3, clip=1.0), 1),
        Case("FedEPM, Laplace, gradient that vanishes", near, epm(k0=4), Laplace(epsilon=1.0, clip=1.0), 1),
        Case("SFedAvg, k0 = 3, Laplace", far, lambda noise: SFedAvg(k0=3, lr=0.5, rho=1.0, noise=noise),
             Laplace(epsilon=1.0, **one), 1),
        Case("FedAvg, k0 = 1, Laplace", far, private(FedAvg(k0=1, lr=0.5)), Laplace(epsilon=1.0, clip=1.0), 1),
        Case("FedAvg, k0 = 3, Gaussian", far, private(FedAvg(k0=3, lr=0.5)),
             Gaussian(epsilon=1.0, delta=1e-3, **one), 1),
        Case("FedAvg, k0 = 1, a total for 4 rounds", far, private(FedAvg(k0=1, lr=0.5)),
             Local(epsilon=1.0, delta=1e-3).noise(4, clip=1.0), 4),
        Case("FedProx, Laplace", far, private(FedProx(lr=0.5, mu=0.1)), Laplace(epsilon=1.0, **one), 1),
        Case("FedGiA, Laplace, 4 rounds", far, private(FedGiA(k0=3, alpha=1.0)), Laplace(epsilon=0.5, **one), 4),
        Case("PrivateNewton, Gaussian", far, private(PrivateNewton(rounds=2)), gauss, 1),
        Case("PrivateNewton, a cap, Gaussian", flipped, capped, gauss, 1, model=0.03),
        Case("PrivateNewton, second moments, Gaussian", turned, private(PrivateNewton(rounds=2)), gauss, 1, kind=0),
        Case("PrivateNewton, measuring a cap, Gaussian", measured, capped, gauss, 1, kind=2, model=-1.0),
        Case("PrivateNewton, second moments, shares of 4", many_turned, in_shares(PrivateNewton(rounds=2)), fourths, 1,
             kind=0),
        Case("FedAvg, k0 = 1, shares of 4, of which 1 colludes", shared_pair(logistic), in_shares(FedAvg(k0=1, lr=0.5)),
             fourths, 1),
        Case("FedEPM, Eq. (39), gradient that vanishes", near, epm(k0=1), PaperLaplace(0.1), 1, weak=True),
        Case("FedEPM, Eq. (39), released draw, same pair", near, epm(k0=1), PaperLaplace(0.1, standardised=True), 1,
             weak=True),
    ]  # fmt: skip


def run(
    trials: int, seed: int = 0, confidence: float = CONFIDENCE, begin: Callable[[str], None] = lambda what: None
) -> list[tuple[Case, Audit]]:
    """Audit every case; `begin` is called with its name before each."""
    results = []
    for case in cases():
        begin(case.what)
        results.append((case, case.run(trials, seed, confidence)))
    return results


ABOUT = (
    "Each mechanism runs many times on two data sets that differ in one example, and the audit tells from what is sent",
    "which of the two it was. The better that can be done, the larger the true epsilon must be.",
)
READ = (
    "A true epsilon above the promised one breaks the promise. One below it proves nothing: it says that this test,",
    "which knows both data sets and sees everything that is sent, found no flaw. The proofs are in docs/privacy.md.",
    "Eq. (39) is the FedEPM paper's own noise. Its epsilon is nominal: foedus gives no guarantee for it.",
)


def table(results: list[tuple[Case, Audit]]) -> str:
    """Return the audits as a table in text: what is promised, what was measured, and whether the two agree."""
    rows = [("mechanism and pair of data sets", "promised epsilon", "at delta", "true epsilon at least", "verdict")]
    for case, result in results:
        promise, delta = case.promise()
        above = result.epsilon > promise
        words = "DISPROVED" if above else "not disproved"
        promise_cell = f"{promise:.4g}" + ("" if isinstance(case.noise, Sound) else " (nominal)")
        rows.append((case.what, promise_cell, f"{delta:g}", f"{result.epsilon:.4g}", words))
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    one = results[0][1]
    footnote = (
        f"{one.trials:,} runs on each data set, half of them to choose the test and half to count; each bound holds by "
        f"itself with {100 * one.confidence:g} % confidence."
    )
    return "\n".join([*ABOUT, "", lines[0], "-" * len(lines[0]), *lines[1:], "", *READ, footnote])
