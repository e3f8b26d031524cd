"""A client's release: noise of the right scale, its own count of releases, and the limit that a budget sets."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from foedus.algorithm import state
from foedus.privacy.noise import Sound


@state
class Spent:
    """A client's own record of what it has released; none of it is a function of the data."""

    releases: Array  # how many so far
    sensitivity: Array  # of the last one, in the norm of its noise
    scale: Array  # of the noise drawn for the last one
    carried: Array  # δ of the private state that goes on to the next round

    @staticmethod
    def nothing() -> "Spent":
        return Spent(jnp.zeros((), int), jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def speaks(noise: Sound, spent: Spent, willing: Array) -> Array:
    """Whether a client that is asked releases something new: not once its budget is spent."""
    return willing if noise.most is None else willing & (spent.releases < noise.most)


def release(
    noise: Sound, spent: Spent, value: Array, sensitivity: Array, carried: Array, key: Array, speaking: Array
) -> tuple[Spent, Array]:
    """The record afterwards, and the value with noise; a client that does not speak must not send the latter."""
    scale = noise.scale(sensitivity)
    made = Spent(spent.releases + 1, sensitivity, scale, carried)
    kept = Spent(*(jnp.where(speaking, new, old) for new, old in zip(_parts(made), _parts(spent), strict=True)))
    return kept, noise.release(value, scale, key)


def _parts(spent: Spent) -> tuple[Array, Array, Array, Array]:
    return spent.releases, spent.sensitivity, spent.scale, spent.carried


def observed(spent: Any) -> dict[str, Array]:
    """The clients' records as the simulator keeps them for the ledger: an entry per client and round."""
    if not isinstance(spent, Spent):
        return {}
    return {
        "ledger.releases": spent.releases,
        "ledger.sensitivity": spent.sensitivity,
        "ledger.scale": spent.scale,
    }


def all_spent(noise: Any, releases: Array) -> Array:
    """Whether every client has reached its limit, from the server's count of what it received."""
    if not isinstance(noise, Sound) or noise.most is None:
        return jnp.zeros((), bool)
    return jnp.all(releases >= noise.most)
