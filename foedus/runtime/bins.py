"""Bins: clients of very different sizes in a few rectangles, instead of one as high as the largest client needs."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import PyTree, state
from foedus.privacy.releasing import noise_of
from foedus.problem.sizes import cut
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm
from foedus.protocol.constrained import Constrained
from foedus.protocol.participation import Participation, Schedule


@state
class Bin:
    """Some of the clients, with data cut to the height that the largest of them needs."""

    index: Array
    uids: Array
    data: Data


def split_into_bins(
    algorithm: Algorithm,
    terms: Terms,
    data: Data,
    groups: list[tuple[np.ndarray, int]] | None,
    uids: np.ndarray,
    who: Participation,
) -> tuple[Bin, ...] | None:
    """Divide the clients into bins of similar size; None where one rectangle will do.

    Bins need everybody's answer in every round, because who is asked must not change the shape of the work. The states
    of clients in different bins may differ in shape, so an algorithm whose releases are noted from its states gets one
    rectangle.

    Args:
        algorithm: the algorithm of the run.
        terms: what the parties know of the problem.
        data: all clients' arrays on a leading axis.
        groups: clients of similar size, with the height of each group; None where that saves little.
        uids: the two words that key each client's random draws.
        who: who takes part in a round.
    """
    everyone = who.size(terms.clients) == terms.clients and not isinstance(who, Schedule) and who.dropout == 0
    if groups is None or isinstance(algorithm, Constrained) or not everyone:
        return None
    bins = tuple(
        Bin(jnp.asarray(group), jnp.asarray(uids[group]), cut(data, group, height)) for group, height in groups
    )
    return bins if noise_of(algorithm) is None or _alike(algorithm, terms, bins) else None


def _alike(algorithm: Algorithm, terms: Terms, bins: tuple[Bin, ...]) -> bool:
    """Return whether a client's state has one shape in all bins."""
    w0 = jnp.zeros(terms.dim)
    first = [jax.tree.map(lambda a: a[0], b.data) for b in bins]
    shapes = [jax.eval_shape(lambda d: algorithm.join(terms, d, w0), d) for d in first]
    return all(jax.tree.map(lambda a: a.shape, shape) == jax.tree.map(lambda a: a.shape, shapes[0]) for shape in shapes)


def join_bins(parts: list[PyTree], bins: tuple[Bin, ...]) -> PyTree:
    """Return the replies, or states, of all bins in the order of the clients."""
    order = jnp.argsort(jnp.concatenate([bin.index for bin in bins]))
    return jax.tree.map(lambda *rows: jnp.concatenate(rows)[order], *parts)


def by_client(states: PyTree, data: PyTree, clients: int) -> list[PyTree]:
    """Return each client's state, from NumPy arrays over all clients or over those of each bin in `data`."""
    if not isinstance(data, tuple):
        return [jax.tree.map(lambda a, i=i: a[i], states) for i in range(clients)]
    found = {}
    for part, bin in zip(states, data, strict=True):
        found |= {int(i): jax.tree.map(lambda a, k=k: a[k], part) for k, i in enumerate(np.asarray(bin.index))}
    return [found[i] for i in range(clients)]
