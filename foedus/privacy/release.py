"""A client's release: noise of the right scale, its own count of releases, and the limit that a budget sets."""

import jax.numpy as jnp
from jax import Array

from foedus.privacy import sensitivity as bounds
from foedus.privacy.noise import Noise, Sound
from foedus.pytrees import PyTree, select, state


@state
class Spent:
    """A client's own record of what it has released; none of it is a function of the data."""

    releases: Array  # how many so far
    sensitivity: Array  # of the last one, in the norm of its noise
    scale: Array  # of the noise drawn for the last one
    carried: Array  # δ of the private state that goes on to the next round
    reach: Array  # the largest 1-norm of a received model

    @staticmethod
    def nothing() -> "Spent":
        return Spent(jnp.zeros((), int), jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def speaks(noise: Sound, spent: Spent, willing: Array) -> Array:
    """Whether a client that is asked releases something new: not once its budget is spent."""
    return willing if noise.most is None else willing & (spent.releases < noise.most)


def release(
    noise: Sound,
    spent: Spent,
    w: Array,
    increment: Array,
    sensitivity: Array,
    state_change: Array,
    key: Array,
    speaking: Array,
) -> tuple[Spent, Array]:
    """The record afterwards, and w + increment + noise; a client that does not speak must not send the latter.

    The noise goes to the increment alone. The received model w is added to the result, as anybody could who has both:
    had it been added before, a w of size 2^52 would have rounded the increment to whole numbers, and with it the bound.
    """
    reach = jnp.maximum(spent.reach, jnp.sum(jnp.abs(w)))
    rounding = bounds.allowance(reach)
    sensitivity, state_change = sensitivity + rounding, state_change + rounding
    scale = noise.scale(sensitivity)
    after = Spent(spent.releases + 1, sensitivity, scale, state_change, reach)
    record = select(speaking, after, spent)
    return record, w + noise.release(increment, scale, key)


def release_columns(spent: PyTree) -> dict[str, Array]:
    """The clients' records as the simulator keeps them for the ledger: an entry per client and round."""
    if not isinstance(spent, Spent):
        return {}
    return {
        "ledger.releases": spent.releases,
        "ledger.sensitivity": spent.sensitivity,
        "ledger.scale": spent.scale,
    }


def all_spent(noise: Noise | None, releases: Array) -> Array:
    """Whether every client has reached its limit, from the server's count of what it received."""
    if not isinstance(noise, Sound) or noise.most is None:
        return jnp.zeros((), bool)
    return jnp.all(releases >= noise.most)
