"""Central: a total for a run whose server sees sums alone, with the noise that one trusted curator would add.

Each site adds a share of discrete Gaussian noise to whole numbers of units of 2^-40, before it masks them. A share has
the variance s²/(n − t): the shares of any n − t sites carry the whole s², so that up to t sites may collude with the
server, or vanish before the sum. What is proved for the sum, and why the exact Gaussian curve holds for it, is in
docs/privacy.md, "Noise in shares".
"""

from dataclasses import dataclass, fields, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.settings import check
from foedus.privacy.noise import Gaussian, Sound
from foedus.privacy.total import Local
from foedus.problem.problem import Problem

BITS = 40  # a unit is 2^-BITS, the resolution of masked sums of one word
SMOOTHING = 10.0  # r of the proof, in units: the variance that the rounding of a continuous Gaussian takes
LEAST_SHARE = 20.0  # a share's least standard deviation, in units, so that sums of shares are Gaussian to 1e-800
LARGEST_SHARE = 2.0**42  # and its largest: a draw of 64 of them, beside the value, is within the range of masked sums
LARGEST_VALUE = 2.0**47  # a number is cut to this many units before the noise
MOST_ROWS = 2**24  # of one site: the rounding of a sum over them is allowed for
REACH = 2.0**14  # the largest 1-norm of a model that a site evaluates: rounding is allowed for up to it
USEFUL = 1.0  # the noise of a round may be at most this many times as long as the longest mean of clipped gradients


@dataclass(frozen=True, kw_only=True)
class NoiseShares(Gaussian):
    """Discrete Gaussian noise in shares, for sums that are masked; `fd.Central` makes it.

    `epsilon`, `delta` and the scale are those of the sum. A client divides its sums over examples by `least_rows` where
    it has fewer, so that the sensitivity is the same number at every client and tells nothing about it.

    Args:
        sites: the clients of the run, n.
        tolerate: how many of them may collude or vanish in all, t.
        least_rows: the number of examples that the sensitivity is computed for.
    """

    sites: int
    tolerate: int
    least_rows: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least, most in (("sites", 1, 2**13), ("tolerate", 0, self.sites - 1), ("least_rows", 1, MOST_ROWS)):
            check(f"The {name!r} of Central", getattr(self, name), ge=least, le=most, whole=True)

    @property
    def kind(self) -> str:
        return "Gaussian"

    @property
    def released(self) -> str:
        return (
            f"the sum over clients, in each round; each of {self.sites} adds 1/{self.sites - self.tolerate} of the "
            f"noise's variance, so that {self.tolerate} may collude or vanish in all"
        )

    @property
    def ledger_note(self) -> str:
        least = self.sites - self.tolerate
        return f", in a sum with shares of noise of at least {least} of {self.sites} sites that do not collude"

    @property
    def alone(self) -> "NoiseShares":
        return replace(self, tolerate=self.sites - 1)  # one share is the whole

    def divisor(self, count: Array) -> Array:
        return jnp.maximum(count, self.least_rows)

    def rows_range(self, count: Array) -> tuple[Array, Array]:
        return jnp.asarray(float(self.least_rows)), jnp.asarray(float(MOST_ROWS))

    def allowance(self, reach: Array, size: int) -> Array:
        # rounding to whole units moves each number by half a unit under each of the two data sets
        return jnp.asarray(2.0**-40 * REACH + 2.0**-BITS * size**0.5)

    def furthest(self, reach: Array) -> Array:
        return jnp.asarray(REACH)  # the same at every client, as the scale has to be

    def within(self, reach: Array) -> Array:
        return reach <= REACH

    def beside(self, w: Array, increment: Array) -> Array:
        return increment

    def share(self, scale: Array) -> Array:
        """The standard deviation of one client's share, in units, where the sum's noise has this scale."""
        variance = (scale * 2.0**BITS) ** 2 + SMOOTHING**2
        lift = 1.0 + 2.0**-40  # so that rounding, which may lose the second term, never makes it smaller
        return jnp.maximum(lift * jnp.sqrt(variance / (self.sites - self.tolerate)), LEAST_SHARE)

    def release(self, value: Array, scale: Array, key: Array) -> Array:
        """Return the value in whole units with one share of the noise; noise alone where the value has no number."""
        share = self.share(scale)
        good = (scale > 0) & (share <= LARGEST_SHARE)
        units = jnp.rint(jnp.where(good & jnp.isfinite(value), value, 0.0) * 2.0**BITS)
        units = jnp.clip(units, -LARGEST_VALUE, LARGEST_VALUE)
        share = jnp.where(good, share, LARGEST_SHARE)
        if self.sampler == "opendp":
            from foedus.privacy.sampling import release_units_inside

            return release_units_inside(units, share) * 2.0**-BITS
        return (units + jnp.rint(share * jax.random.normal(key, value.shape))) * 2.0**-BITS

    def check_useful(self, dim: int) -> None:
        """Raise where noise drowns whatever the data say: ε is too small for so many rounds and so few examples."""
        spread = (self.sites / (self.sites - self.tolerate)) ** 0.5 * dim**0.5 / self.sites
        ratio = self.multiplier * self.gradient_change / self.least_rows * spread / self.clip
        if not ratio <= USEFUL:
            asked_for = self.epsilon if self.total is None else self.total[0]
            raise FoedusError(
                f"epsilon {asked_for:g} is too small for any useful noise here: that of one round would be "
                f"{ratio:.3g} times as long as the longest mean of clipped gradients; raise epsilon, play fewer "
                "rounds, or bring more rows."
            )

    def check_counts(self, problem: Problem) -> None:
        """Raise where a client has more rows than the rounding of a sum is allowed for."""
        for name, count in zip(problem.names, problem.counts, strict=True):
            if count > MOST_ROWS:
                raise FoedusError(f"client {name!r} has {count} rows; with Central at most {MOST_ROWS} are allowed.")

    def __str__(self) -> str:
        return (
            f"discrete Gaussian noise in shares of {self.sites} clients, of which {self.tolerate} may collude or "
            f"vanish in all; gradients clipped at {self.clip:g} in the 2-norm and divided by {self.least_rows} "
            f"examples or more: {self.promise}"
        )


@dataclass(frozen=True, kw_only=True)
class Central(Local):
    """A total of ε and δ over the whole run, with noise on sums: as much as one trusted curator would add.

    It needs `secure=True`, which hides single replies: what a client adds to its own reply is a share that would not
    protect it alone. The promise holds against a server that follows the protocol of masked sums, together with as many
    clients as `tolerate` says.

    Args:
        epsilon: the total ε.
        delta: the total δ, above 0.
        clip: the largest norm of one example's gradient, as for `Local`.
        rows: a bound on the 2-norm of the rows of X, as for `Local`.
        neighbours: "replace" or "add-or-remove".
        sampler: "simulation" or "opendp".
        tolerate: how many clients may collude with the server or vanish, in all; None: as many as masked sums can do
            without, nearly a third. The noise of a full sum has n/(n − tolerate) of the variance that is needed.
        least_rows: the number of examples that the sensitivity is computed for; clients with fewer divide by it. None:
            the fewest of any client.

    Example:
        >>> import foedus as fd, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(2000, 2))
        >>> sites = fd.data.split(x, x @ np.array([1.0, 2.0]), clients=5)
        >>> problem = fd.Problem(sites, loss=fd.losses.least_squares)
        >>> total = fd.Central(epsilon=2.0, delta=1e-5)
        >>> run = fd.solve(problem, fd.FedAvg(k0=1, lr=0.5), max_rounds=4, privacy=total, secure=True)
        >>> bool(1.99 < run.ledger.total(0, "tight") <= 2.0)
        True
    """

    tolerate: int | None = None
    least_rows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.delta > 0:
            raise FoedusError(f"The 'delta' of Central must be a number > 0 and < 1. Got {self.delta!r} instead.")

    def noise_for(self, problem: Problem, rounds: int, *, needs_rows: bool) -> Sound:
        noise = super().noise_for(problem, rounds, needs_rows=needs_rows)
        assert isinstance(noise, Gaussian)
        sites, counts = problem.terms.clients, np.asarray(problem.counts)
        if self.least_rows is None and not (counts.size and np.all(counts > 0)):
            raise FoedusError("Central needs least_rows where nobody knows how many rows the clients have.")
        settings = {field.name: getattr(noise, field.name) for field in fields(noise)}
        return NoiseShares(
            **settings,
            sites=sites,
            tolerate=usual_tolerance(sites) if self.tolerate is None else self.tolerate,
            least_rows=int(counts.min()) if self.least_rows is None else self.least_rows,
        )


def usual_tolerance(sites: int) -> int:
    """Return how many of so many sites masked sums can do without: a sum is over more than two thirds of them."""
    return max(0, sites - (2 * sites // 3 + 1))
