"""Bins: clients of very different sizes in a few rectangles, instead of one as high as the largest client needs."""

from itertools import combinations, pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithm import Algorithm
from foedus.constrained import Constrained
from foedus.privacy.releasing import noise_of
from foedus.pytrees import PyTree, state
from foedus.runtime.participation import Participation, Schedule
from foedus.terms import Data, Terms

LEAST_BYTES = 2**25  # of X: below this, work on filling rows costs less than compiling `local` for several heights
LEAST_SAVING = 0.4  # the share of the rows that bins must save to be worth their compilation
MOST_BINS = 4  # `local` is compiled once for each
PLACES = 17  # where a group may end: 15 places inside, so that all ways to cut are tried in a moment
ROWS = ("x", "y", "group", "weight")  # the arrays of a linear model that have a row for each example


@state
class Bin:
    """Some of the clients, with data cut to the height that the largest of them needs."""

    index: Array
    uids: Array
    data: Data


def heights(counts: np.ndarray) -> list[np.ndarray]:
    """Return the clients in at most `MOST_BINS` groups, by falling size, whose rectangles hold the fewest rows."""
    order = np.argsort(-counts, kind="stable")
    size, n = counts[order], len(counts)
    places = np.unique(np.linspace(0, n, PLACES).astype(int)[1:-1])
    best, cuts = n * size[0], ()
    for many in range(1, MOST_BINS):
        for candidate in combinations(places.tolist(), many):
            ends = (0, *candidate, n)
            area = sum((b - a) * size[a] for a, b in pairwise(ends))
            if area < best:
                best, cuts = area, candidate
    return np.split(order, cuts)


def split_into_bins(
    algorithm: Algorithm,
    terms: Terms,
    data: Data,
    counts: np.ndarray,
    uids: np.ndarray,
    who: Participation,
    rectangles: tuple[tuple[int, int], ...] | None = None,
) -> tuple[Bin, ...] | None:
    """Divide the clients into bins of similar size; None where one rectangle will do.

    Bins need everybody's answer in every round, because who is asked must not change the shape of the work. The states
    of clients in different bins may differ in shape, so an algorithm whose releases are noted from its states gets one
    rectangle.

    Args:
        algorithm: the algorithm of the run.
        terms: what the parties know of the problem.
        data: all clients' arrays on a leading axis.
        counts: the number of examples of each client.
        uids: the two words that key each client's random draws.
        who: who takes part in a round.
        rectangles: the (clients, rows) of each bin, where the data came with them; else bins are chosen by size.
    """
    everyone = who.size(terms.clients) == terms.clients and not isinstance(who, Schedule) and who.dropout == 0
    if terms.loss is None or isinstance(algorithm, Constrained) or not everyone:
        return None
    if rectangles is not None:
        groups = np.split(np.argsort(-counts, kind="stable"), np.cumsum([many for many, _ in rectangles])[:-1])
        tall = [rows for _, rows in rectangles]
    elif data["x"].nbytes < LEAST_BYTES:
        return None
    else:
        groups = heights(counts)
        tall = [int(counts[group[0]]) for group in groups]
        used = sum(len(group) * rows for group, rows in zip(groups, tall, strict=True))
        if used > (1.0 - LEAST_SAVING) * counts.size * counts.max():
            return None
    bins = tuple(_bin(data, group, rows, uids) for group, rows in zip(groups, tall, strict=True))
    return bins if noise_of(algorithm) is None or _alike(algorithm, terms, bins) else None


def _alike(algorithm: Algorithm, terms: Terms, bins: tuple[Bin, ...]) -> bool:
    """Return whether a client's state has one shape in all bins."""
    w0 = jnp.zeros(terms.dim)
    first = [jax.tree.map(lambda a: a[0], b.data) for b in bins]
    shapes = [jax.eval_shape(lambda d: algorithm.join(terms, d, w0), d) for d in first]
    return all(jax.tree.map(lambda a: a.shape, shape) == jax.tree.map(lambda a: a.shape, shapes[0]) for shape in shapes)


def _bin(data: Data, group: np.ndarray, height: int, uids: np.ndarray) -> Bin:
    cut = {k: v[group, :height] if k in ROWS else v[group] for k, v in data.items()}
    return Bin(jnp.asarray(group), jnp.asarray(uids[group]), Data(cut))


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
