"""The server's part of a round, compiled once for each kind of round: the message, and the state after the replies."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Algorithm, Present
from foedus.pytrees import PyTree, state, strong
from foedus.runtime import spine
from foedus.runtime.participation import LOSE, SERVER, Participation, client_uniforms, round_key
from foedus.runtime.spine import Carry
from foedus.terms import Data, Terms

STARTED = -1  # the number of the state that `join` makes


@state
class Play:
    """The state of a run between two rounds, at the server of a federation."""

    carry: Carry
    last: Array  # for each client, the round of the last reply that was accepted


@partial(jax.jit, static_argnames=("algorithm", "terms"))
def first(algorithm: Algorithm, terms: Terms, w0: Array, own: Data | None) -> Play:
    """Return the state before the first round."""
    return strong(Play(spine.first(algorithm, terms, w0, own), jnp.full(terms.clients, STARTED)))


@partial(jax.jit, static_argnames=("algorithm", "terms", "phase"))
def broadcast(
    algorithm: Algorithm, terms: Terms, phase: int, server: PyTree, key: Array, round: Array, uids: Array
) -> PyTree:
    """Return the message of this round."""
    return algorithm.kinds[phase].broadcast(terms, server, client_uniforms(round_key(key, SERVER, round), uids))


@partial(jax.jit, static_argnames=("algorithm", "terms", "phase"))
def aggregate(
    algorithm: Algorithm, terms: Terms, phase: int, play: Play, replies: PyTree, here: Array
) -> tuple[Play, dict[str, Array]]:
    """Return the state after a round, and its record; a round that nobody answered changes nothing."""
    present = Present(jnp.arange(terms.clients), here)
    carry = spine.advance(algorithm, terms, algorithm.kinds[phase], play.carry, replies, present, sure=False)
    last = jnp.where(here, play.carry.round, play.last)
    return strong(Play(carry, last)), dict(algorithm.report(carry.server))


@jax.jit
def asked_clients(participation: Participation, key: Array, round: Array, uids: Array) -> Array:
    """Return who is asked in a round; (clients,) booleans."""
    n = uids.shape[0]
    return jnp.zeros(n, bool).at[participation.choose(key, round, uids)].set(True, mode="drop")


@jax.jit
def draws(key: Array, round: Array, uids: Array) -> Array:
    """Return the uniform numbers that decide whose reply is lost."""
    return client_uniforms(round_key(key, LOSE, round), uids)
