"""Rounds whose server sees sums alone: which algorithms they are for, the agreed numbers, and the sum in a simulation.

A simulation adds up the same 64-bit integers as masked sums over real sites do; only the masks, which cancel, are left
out. A number beyond the agreed range never wraps: it is clipped, and a run in which that happened ends with a sentence.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree
from foedus.base.quantities import size
from foedus.privacy.central import NoiseShares
from foedus.privacy.releasing import sound_noise
from foedus.problem.problem import Problem
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm, name_of
from foedus.protocol.participation import Participation, Schedule
from foedus.protocol.summing import Summing
from foedus.sums.fixed_point import FixedPoint
from foedus.sums.questions import EXTRA, LEAST_OTHERS, RESOLUTION, check_enough, remedy

SEALED, SHARE, SIGNATURE = 48, 32, 64  # bytes of a share under seal, and open; of a signature
MOST_SITES, MOST_BYTES = 50, 2**20  # of a checked sum: every site gets the vectors of all


@jax.tree_util.register_static
@dataclass(frozen=True)
class Masking:
    """How a run's replies are added up: the fixed point, and the fewest other sites that a sum may be over."""

    point: FixedPoint
    least_others: int = LEAST_OTHERS
    verified: bool = False  # whether each site adds the sums up itself

    @property
    def measuring(self) -> "Masking":
        """The form in which the certificate is added up: second derivatives need two words."""
        return replace(self, point=replace(self.point, bits=RESOLUTION[2], words=2))

    def enough(self, answered: Array | int, asked: Array | int) -> Array | bool:
        """Return whether so many answers of those that were asked make a sum that sites let be seen."""
        return (answered >= 2 * asked // 3 + 1) & (answered >= self.least_others + 1)

    def traffic(self, down: int, numbers: int, sites: int) -> tuple[int, int]:
        """Return the bytes that one site receives and sends in a masked round, with shares and reveal.

        In a checked run it receives every site's vector in place of the message, which it works out itself.
        """
        vector = 8 * (self.point.words * numbers + EXTRA) + SIGNATURE
        content = sites * (vector + SHARE) if self.verified else down
        return content + SEALED * (sites - 1), vector + SHARE + SEALED * (sites - 1) + SHARE * sites

    def check_size(self, numbers: int, sites: int) -> None:
        """Raise where a checked sum of so many numbers is more than every site should get in a round."""
        down, _ = self.traffic(0, numbers, sites)
        if sites > MOST_SITES or down > MOST_BYTES:
            raise FoedusError(
                f"checked sums show every site the vectors of all: {sites} sites with {numbers} numbers each are "
                f"{size(down)} a site and round, and at most {MOST_SITES} sites and {size(MOST_BYTES)} are allowed. "
                "Use fewer columns or an algorithm with smaller replies, or write verify = false, which each site's "
                "policy must allow."
            )

    def add_up(self, replies: PyTree, here: Array) -> tuple[PyTree, Array]:
        """Return the sum of the replies of those that are here, in integers of the fixed point, and what was clipped.

        That is the largest number beyond the range, the row of its client, and its place among the tree's leaves; zeros
        where all are within. Where a number of theirs is not finite, the sum is NaN, as it would be without masks.
        """
        worst = jnp.zeros(3)
        leaves, tree = jax.tree.flatten(replies)
        totals = []
        for place, leaf in enumerate(leaves):
            rows = jnp.where(here.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf.astype(float), 0.0)
            finite = jnp.all(jnp.isfinite(rows))
            rows = jnp.where(jnp.isfinite(rows), rows, 0.0)
            words, _ = self.point.encode(rows, jnp)
            totals.append(jnp.where(finite, self.point.decode(jnp.sum(words, axis=0), jnp), jnp.nan))
            if leaf.size:
                at = jnp.argmax(jnp.abs(rows).ravel())
                value, row = rows.ravel()[at], at // (leaf.size // leaf.shape[0])
                is_worse = jnp.abs(value) > jnp.maximum(jnp.abs(worst[0]), self.point.largest)
                worst = jnp.where(is_worse, jnp.stack([value, row.astype(float), jnp.full((), float(place))]), worst)
        return jax.tree.unflatten(tree, totals), worst


def masking_of(algorithm: Algorithm, terms: Terms) -> Masking:
    """Return how the replies of an algorithm are added up; raise where it needs single replies, or sites are few."""
    if not isinstance(algorithm, Summing):
        other = "InteriorPoint" if terms.constraints else "FedAvg, Scaffold or InteriorPoint"
        raise FoedusError(
            f"{name_of(algorithm)} needs each client's own reply, which masked sums (secure) do not show, or its class "
            f"does not say that sums are enough (foedus.protocol.summing.Summing); use {other}."
        )
    check_enough(terms.clients, "clients")
    point = FixedPoint(terms=terms.clients, bits=RESOLUTION[algorithm.words], words=algorithm.words)
    noise = sound_noise(algorithm)
    return Masking(point, least_others_of(noise)) if isinstance(noise, NoiseShares) else Masking(point)


def least_others_of(noise: NoiseShares) -> int:
    """Return the fewest other sites of a sum whose noise comes in shares: with fewer it would be too little."""
    return max(LEAST_OTHERS, noise.sites - noise.tolerate - 1)


def is_verified(algorithm: Algorithm, participation: Participation, clients: int, has_own_data: bool) -> bool:
    """Return whether the sites of a run with masked sums can check the server: the sums alone decide its part.

    With noise a round may be summed over those who are there, and noise covers what the server chooses.
    """
    asks_all = participation.size(clients) == clients and not isinstance(participation, Schedule)
    return sound_noise(algorithm) is None and asks_all and participation.dropout == 0 and not has_own_data


def check_shares(algorithm: Algorithm, problem: Problem, participation: Participation, secure: bool) -> None:
    """Raise where noise in shares would not add up to what it must, or single replies would be seen."""
    noise, clients = sound_noise(algorithm), problem.terms.clients
    if not isinstance(noise, NoiseShares):
        return
    if not secure:
        raise FoedusError(
            "Central adds to each client's reply a share of the noise, which does not protect that reply alone; use "
            "secure=True, so that only sums are seen, or Local."
        )
    if noise.sites != clients:
        raise FoedusError(f"the noise is in shares of {noise.sites} clients, and the problem has {clients}.")
    if participation.size(clients) < clients - noise.tolerate:
        raise FoedusError(
            f"Central needs the noise of {clients - noise.tolerate} of {clients} clients in every round, and this "
            f"participation asks {participation.size(clients)}; ask more, or raise tolerate."
        )
    noise.check_counts(problem)


def check_everybody(algorithm: Algorithm, participation: Participation, clients: int, minimum: int | None) -> None:
    """Raise where sums over real sites would be over one set in a round and another in the next, without noise.

    The difference of two such sums is about the few sites that are in one of them alone.
    """
    if sound_noise(algorithm) is not None:
        return
    if minimum is not None:
        raise FoedusError(
            "masked sums (secure) without noise are over the same sites in every round, so 'minimum' does not go with "
            "them: a run waits for a site that is away. Leave it out, or use noise (Central)."
        )
    asks_all = participation.size(clients) == clients
    if isinstance(participation, Schedule):  # a row that asks fewer is filled up with a number that is no client's
        asks_all = asks_all and bool(np.all(np.asarray(participation.table) < clients))
    if not asks_all or participation.dropout > 0:
        raise FoedusError(
            "masked sums (secure) without noise are over the same sites in every round, and this participation asks "
            "some of them, or loses replies; ask all in every round, or use noise (Central)."
        )


def by_sums(algorithm: Algorithm) -> Algorithm:
    """Return the form of an algorithm that needs only sums, where it has one."""
    return algorithm.by_sums() if isinstance(algorithm, Summing) else algorithm


def fields_of(tree: PyTree) -> list[str]:
    """Return the names of a tree's leaves, as a sentence calls them."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return [repr(jax.tree_util.keystr(path, simple=True, separator=".")) if path else "the vector" for path in paths]


def beyond_range(point: FixedPoint, tree: PyTree) -> tuple[str, float] | None:
    """Return the largest finite number of a tree with its field, where it is beyond the range; None where it is not."""
    worst, field = 0.0, ""
    for name, leaf in zip(fields_of(tree), jax.tree.leaves(tree), strict=True):
        numbers = np.asarray(leaf, dtype=float).ravel()
        numbers = numbers[np.isfinite(numbers)]
        if numbers.size and abs(own := float(numbers[np.argmax(np.abs(numbers))])) > abs(worst):
            worst, field = own, name
    return (field, worst) if abs(worst) > point.largest else None


def check_range(point: FixedPoint, worst: np.ndarray, names: list[str], fields: list[str], what: str) -> None:
    """Raise where `add_up` has clipped a number, with its client, field and value: what a simulation can say."""
    value, row, place = (float(number) for number in worst)
    if value:
        client, field = names[int(row)], fields[int(place)]
        raise FoedusError(f"client {client!r}: {field} of its {what} holds {value:.4g}, {remedy(point)}.")
