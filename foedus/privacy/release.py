"""One release of a client: noise of the right scale, the client's own record of it, and the limit of a budget."""

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree, select, state
from foedus.privacy.noise import Noise, Sound


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
        """Return the record of a client that has released nothing."""
        return Spent(jnp.zeros((), int), jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def speaks(noise: Sound, record: Spent, willing: Array) -> Array:
    """Return whether a willing client releases something new, which it does not once its budget is spent."""
    return willing if noise.most is None else willing & (record.releases < noise.most)


def release(
    noise: Sound,
    before: Spent,
    w: Array,
    increment: Array,
    sensitivity: Array,
    state_change: Array,
    key: Array,
    speaking: Array,
) -> tuple[Spent, Array]:
    """Return the record afterwards, and w + increment + noise, which a client that is not `speaking` must not send.

    A client that adds a share of noise to a sum sends no w: the server adds it.

    The noise goes to the increment alone. The received model w is added to the result, as anybody could who has both:
    had it been added before, a w of size 2^52 would have rounded the increment to whole numbers, and with it the bound.
    """
    reach = jnp.maximum(before.reach, jnp.sum(jnp.abs(w)))
    rounding = noise.allowance(reach, increment.size)
    sensitivity, state_change = sensitivity + rounding, state_change + rounding
    scale = noise.scale(sensitivity)
    after = Spent(before.releases + 1, sensitivity, scale, state_change, reach)
    record = select(speaking, after, before)
    increment = jnp.where(noise.within(reach), increment, 0.0)
    return record, noise.beside(w, noise.release(increment, scale, key))


def release_vector(
    noise: Sound,
    before: Spent,
    reach: Array,
    shared: Array,
    own: Array,
    sensitivity: Array,
    key: Array,
) -> tuple[Spent, Array, Array, Array]:
    """Release two vectors at once: one that is summed over clients, and one that only this client has.

    `sensitivity` bounds by how far both together move, in the norm of the noise. Where the noise comes in shares, the
    second vector gets all of it from this client alone. A client whose releases are used up sends noise alone.

    Returns:
        The record afterwards, whether the client speaks, and the two vectors.
    """
    speaking = speaks(noise, before, jnp.ones((), bool))
    reach = jnp.maximum(before.reach, reach)
    sensitivity = sensitivity + noise.allowance(reach, shared.size + own.size)
    scale = noise.scale(sensitivity)
    after = Spent(before.releases + 1, sensitivity, scale, jnp.zeros(()), reach)
    good = speaking & noise.within(reach)
    one, two = jax.random.split(key)
    sent = noise.release(jnp.where(good, shared, 0.0), scale, one)
    alone = noise.alone.release(jnp.where(good, own, 0.0), scale, two) if own.size else own
    return select(speaking, after, before), speaking, sent, alone


def release_columns(records: PyTree) -> dict[str, Array]:
    """Return the clients' records as columns of the simulator's history, from which the ledger is made."""
    if not isinstance(records, Spent):
        return {}
    return {
        "ledger.releases": records.releases,
        "ledger.sensitivity": records.sensitivity,
        "ledger.scale": records.scale,
    }


def all_spent(noise: Noise | None, releases: Array) -> Array:
    """Return whether every client has reached its limit, from the server's count of what it received."""
    if not isinstance(noise, Sound) or noise.most is None:
        return jnp.zeros((), bool)
    return jnp.all(releases >= noise.most)
