"""The server's part of a round, compiled once for each kind: what goes out, what comes of the replies."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Algorithm, Present
from foedus.pytrees import state, strong
from foedus.runtime.participation import LOSE, SERVER, Participation, client_uniforms, round_key
from foedus.terms import Data, Terms


@state
class Carry:
    """What a run is between two rounds, at the server."""

    server: Any
    w: Array
    round: Array
    last: Array  # for each client, the round of the last reply that was accepted
    done: Array
    finite: Array


@partial(jax.jit, static_argnames=("algorithm", "terms"))
def init(algorithm: Algorithm, terms: Terms, w0: Array, own: Data | None) -> Any:
    return strong(algorithm.init(terms, w0, own))


@partial(jax.jit, static_argnames=("algorithm", "terms", "phase"))
def broadcast(algorithm: Algorithm, terms: Terms, phase: int, server: Any, key: Array, round: Array, uids: Array):
    return algorithm.kinds[phase].broadcast(terms, server, client_uniforms(round_key(key, SERVER, round), uids))


@partial(jax.jit, static_argnames=("algorithm", "terms", "phase"))
def aggregate(algorithm: Algorithm, terms: Terms, phase: int, carry: Carry, replies: Any, here: Array):
    """The carry after a round, its record, and nothing changed where nobody answered."""
    present = Present(jnp.arange(terms.clients), here)
    following = algorithm.kinds[phase].aggregate(terms, carry.server, replies, present)
    server = jax.tree.map(lambda new, old: jnp.where(jnp.any(here), new, old), following, carry.server)
    w = algorithm.parameters(terms, server)
    finite = jnp.all(jnp.isfinite(w))
    done = jnp.asarray(algorithm.converged(server)) | jnp.asarray(algorithm.stuck(server)) | ~finite
    last = jnp.where(here, carry.round, carry.last)
    after = Carry(server, jnp.where(finite, w, carry.w), carry.round + 1, last, done, finite)
    return strong(after), algorithm.report(server)


@jax.jit
def chosen(participation: Participation, key: Array, round: Array, uids: Array) -> Array:
    """Who is asked in a round; (clients,) booleans."""
    n = uids.shape[0]
    return jnp.zeros(n, bool).at[participation.choose(key, round, uids)].set(True, mode="drop")


@jax.jit
def draws(key: Array, round: Array, uids: Array) -> Array:
    """The numbers that say whose reply is lost."""
    return client_uniforms(round_key(key, LOSE, round), uids)
