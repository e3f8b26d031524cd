"""Pooled: a problem restated for one party that holds all the data; for comparison only.

f is the mean of the f_i, and every site's rows are that party's rows. Derivatives come from automatic differentiation,
so a pooled run also checks the structured ones.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree
from foedus.problem.constraints import LossRows
from foedus.problem.problem import Problem
from foedus.problem.stacked import Stacked
from foedus.problem.terms import Constraint, Data, Terms, rows

SITE = "site."  # a pooled array's name is the site's, after this


def _sites(data: Data) -> Data:
    """Return the stacked sites inside the one party's data."""
    return Data({k.removeprefix(SITE): v for k, v in data.items() if k.startswith(SITE)})


@dataclass(frozen=True)
class Mean:
    """The objective of a pooled problem: the mean over sites of f_i."""

    terms: Terms

    def __call__(self, w: PyTree, data: Data) -> Array:
        flat = self.terms.shape.ravel(w)
        return jnp.mean(jax.vmap(lambda d: self.terms.value(flat, d))(_sites(data)))


@dataclass(frozen=True)
class SiteRows(Constraint):
    """One constraint's rows at every site, or their mean where it is coupled."""

    terms: Terms
    inside: Constraint

    def caps(self, terms: Terms, data: Data) -> Array:
        shape = jax.eval_shape(lambda d: self.value(terms, jnp.zeros(terms.dim), d), data)
        return jnp.zeros(shape.shape)

    def labels(self, terms: Terms, data: Data) -> list[str]:
        return [""] * self.caps(terms, data).shape[0]

    def value(self, terms: Terms, w: Array, data: Data) -> Array:
        at_sites = jax.vmap(lambda d: rows(self.terms, self.inside, w, d))(_sites(data))
        return jnp.mean(at_sites, axis=0) if self.inside.scope == "coupled" else jnp.ravel(at_sites)


class Pooled(Problem):
    """All sites' data in one place, as one client; `original` is the problem as it was stated."""

    original: Problem

    def by_site(self, multipliers: dict[str, Array]) -> dict[str, Array]:
        """Return the multipliers of a pooled run by site, in the order of the original problem's rows."""
        problem = self.original
        terms, flat, start = problem.terms, multipliers["local"][0], 0
        blocks: dict[str, list[Array]] = {"local": [], "coupled": []}
        one = Data({k: v[0] for k, v in problem.data.items()})
        for constraint in (c for c in terms.constraints if c.scope != "global"):
            count = len(constraint.labels(terms, one))
            size = count if constraint.scope == "coupled" else terms.clients * count
            part = flat[start : start + size]
            start += size
            blocks[constraint.scope].append(part if constraint.scope == "coupled" else part.reshape(-1, count))
        empty = {"local": jnp.zeros((terms.clients, 0)), "coupled": jnp.zeros(0)}
        by_scope = {k: jnp.concatenate([empty[k], *parts], axis=-1) for k, parts in blocks.items()}
        return by_scope | {"global": multipliers["global"]}


def pool(problem: Problem) -> Pooled:
    """Return the problem of one party that holds all sites' data."""
    terms = problem.terms
    one = object.__new__(Pooled)
    one.original = problem
    arrays = {SITE + k: v[None] for k, v in problem.data.items()}
    one.data = Data(arrays | {"weight": jnp.ones((1, 1))})
    one.stacked = Stacked(arrays, names=("pool",))
    one.server = problem.server
    of_sites = tuple(c for c in terms.constraints if c.scope != "global")
    at_party = tuple(SiteRows(terms, c, kind=c.kind) for c in of_sites)
    own = tuple(
        replace(c, loss=c.loss_in(terms)) if isinstance(c, LossRows) else c
        for c in terms.constraints
        if c.scope == "global"
    )
    local, at_server, coupled = terms.rows
    one.terms = replace(
        terms,
        clients=1,
        loss=None,
        objective=Mean(terms),
        where=None,
        weights=None,
        penalty=None,
        constraints=at_party + own,
        rows=(terms.clients * local + coupled, at_server, 0),
    )
    return one
