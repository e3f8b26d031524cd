"""A site's part in the interior-point method: its state, the question it is asked, and its answer.

The answer is the site's quadratic model of the shared system at the point it is asked about, in a form that can be
added up over sites. A site keeps the model that it sent last. Asked for the `whole`, it sends its model; otherwise it
sends the change since its last one, so that the server's running sum stays a sum over all sites, the silent ones with
the model that they sent last. Where curvature is learnt, there is no matrix and no such model: sites are always asked
for the whole, and the server waits for everybody.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior_point_learnt import LearntShare, learnt_share, rounds_of
from foedus.algorithms.interior_point_rows import (
    NUMBERS,
    Rows,
    blank_rows,
    damped,
    matrix,
    moved,
    row_sums,
    settled,
    started,
)
from foedus.algorithms.lagrangian import Party, equalities, evaluate
from foedus.base.pytrees import select, state
from foedus.certificate.gap import rows_convex
from foedus.numerics.packed import pack
from foedus.problem.terms import Data, Terms
from foedus.protocol.accountable import Account

GUESS = 0.1  # a coupled row's multiplier weighs this share of ∇f_i while the server has none


@state
class OwnRows:
    """The sums that only a site with rows of its own has a part in."""

    a: Array  # Jᵀ D c
    b: Array  # Jᵀ(D/z)
    certificate: Array  # ∇f + Jᵀz with the certificate's multipliers
    pull: Array  # Jᵀz
    numbers: Array  # NUMBERS

    @staticmethod
    def none(dim: int) -> "OwnRows":
        """What no rows add."""
        vector = jnp.zeros(dim)
        return OwnRows(vector, vector, vector, vector, jnp.zeros(len(NUMBERS)))


@state
class Coupled:
    """A site's share in the coupled rows and their Jacobian, both over n, and the Jacobian times w_i."""

    c: Array
    J: Array
    bent: Array


@state
class QuadraticModel:
    """A site's share in the shared system at a point w_i, or the sum of such shares."""

    curvature: Any  # K_i, its upper triangle; or a LearntShare
    lag: Array  # ∇f_i/n + Jᵀz
    bent: Any  # K_i·w_i, or () where curvature is learnt
    f: Array  # f_i/n
    force: Array  # ‖∇f_i/n‖_∞
    local: Any  # OwnRows, or () without local rows
    coupled: Any  # Coupled, or () without coupled rows

    @staticmethod
    def zero(terms: Terms, learns: bool) -> "QuadraticModel":
        dim, (rows, _, coupled), zero = terms.dim, terms.rows, jnp.zeros(())
        vector = jnp.zeros(dim)
        return QuadraticModel(
            curvature=LearntShare.zero(terms) if learns else jnp.zeros(dim * (dim + 1) // 2),
            lag=vector,
            bent=() if learns else vector,
            f=zero,
            force=zero,
            local=OwnRows.none(dim) if rows else (),
            coupled=Coupled(jnp.zeros(coupled), jnp.zeros((coupled, dim)), jnp.zeros(coupled)) if coupled else (),
        )


@state
class Place:
    """A site's rows at a point: its number among the points asked about, slacks and multipliers, c and J."""

    id: Array
    w: Array
    rows: Rows
    c: Array
    J: Array
    multipliers: Array  # the certificate's
    slopes: Any  # ∇f_i/n, and the Jacobian of the coupled rows over n, where curvature is learnt; else ()


@state
class InteriorClient:
    base: Place  # the last place that the server went on from, as far as the site knows
    trial: Place  # the place it was asked about last
    sent: Any  # the QuadraticModel that the server's sum has of this site; () where curvature is learnt
    whole: Array  # the number of the last point about which it sent the whole, or of the last round of such a point


@state
class InteriorAsk:
    """The question: the model at the point w, which is the share alpha of the way from the base to `towards`."""

    w: Array
    towards: Any  # () without local rows
    alpha: Array
    mu: Array
    nu: Array  # the coupled rows' multipliers
    id: Array
    rejected: Array  # the last point that the server went back from
    whole: Array  # whether to send the model itself, and not its change
    scale: Any  # units for the products with Jᵀ D J, where curvature is learnt; else ()
    part: Any  # which of the rounds for which this point is asked about, where curvature is learnt; else ()


@state
class InteriorReply:
    model: QuadraticModel
    heard: Array  # 1 for a site's first whole model of this point
    broken: Array  # 1 where the site's functions are not finite there; it then sends nothing else


def joined(terms: Terms, learns: bool) -> InteriorClient:
    """A site before its first answer."""
    rows, dim, none = terms.rows[0], terms.dim, jnp.full((), -1)
    slopes = (jnp.zeros(dim), jnp.zeros((terms.rows[2], dim))) if learns else ()
    blank = Place(
        none, jnp.zeros(dim), blank_rows(rows), jnp.zeros(rows), jnp.zeros((rows, dim)), jnp.zeros(rows), slopes
    )
    return InteriorClient(blank, blank, () if learns else QuadraticModel.zero(terms, learns), none)


def answer(
    terms: Terms, client: InteriorClient, ask: InteriorAsk, data: Data, eps2: float, learns: bool
) -> tuple[InteriorClient, InteriorReply]:
    """The site's step to the point it is asked about, and its model there."""
    party, count = Party(terms), terms.rows[0]
    equal = equalities(party, data)[:count]
    trial = client.trial
    base = select((trial.id > ask.rejected) & (trial.id < ask.id), trial, client.base)
    shares, bends = evaluate(party, ask.w, data)
    c, J, q, Q = shares.c[:count], shares.J[:count], shares.c[count:], shares.J[count:] / terms.clients
    force = jnp.max(jnp.abs(shares.g))

    first = (trial.id < 0) | (ask.id == 0)
    change = base.J @ (ask.towards - base.w) if count else jnp.zeros(0)
    stepped = settled(moved(base.rows, base.c, change, ask.alpha, ask.mu, equal), c, ask.mu, equal)
    steep = jnp.max(jnp.abs(J), initial=0.0)
    rows = select(first, started(c, steep, terms.clients * force, equal), stepped)
    mu = jnp.where(ask.id == 0, jnp.sum(rows.s * rows.z) / max(1, int(np.sum(~equal))), ask.mu)
    rows = damped(rows, c, J, ask.w, mu, equal, terms.clients * force, rows_convex(terms))

    # while the server has no multiplier of a coupled row, it is one that weighs a share of ∇f_i
    steep = terms.clients * jnp.max(jnp.abs(Q), axis=1, initial=0.0)
    guess = GUESS * force / jnp.maximum(steep, 1e-6 * force + 1e-300)
    nu = jnp.where(ask.id == 0, guess, ask.nu / terms.clients)
    weights, slopes = jnp.concatenate([rows.z, nu]), ()
    if learns:
        slopes = (shares.g, Q)
        moved_by = shares.g - base.slopes[0] + rows.z @ (J - base.J) + terms.clients * nu @ (Q - base.slopes[1])
        moved_by = jnp.where(first, 0.0, moved_by)
        curvature: Any = learnt_share(terms, bends.diagonal(weights), moved_by, rows, J, equal, ask.scale, ask.part)
        bent: Any = ()
    else:
        curvature, bent = bends.along(weights, ask.w)
        if count:
            K = matrix(rows, J, equal)
            curvature, bent = curvature + pack(K), bent + K @ ask.w
    local, lag, kept = (), shares.g, rows.z
    if count:
        sums = row_sums(rows, c, lambda v: v @ J, mu, eps2, equal)
        lag = lag + sums.jz
        kept = sums.kept
        local = OwnRows(sums.a, sums.b, shares.g + kept @ J, sums.jz, sums.numbers)
    model = QuadraticModel(
        curvature=curvature,
        lag=lag,
        bent=bent,
        f=shares.f,
        force=force,
        local=local,
        coupled=Coupled(q / terms.clients, Q, Q @ ask.w) if terms.rows[2] else (),
    )
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((model, rows))]))
    tag = ask.id * rounds_of(terms) + ask.part if learns else ask.id
    heard = client.whole != tag

    def whole_model() -> QuadraticModel:
        return jax.tree.map(lambda new: jnp.where(finite & heard, new, 0.0), model)

    def its_change() -> QuadraticModel:
        return jax.tree.map(lambda new, old: jnp.where(finite, new - old, 0.0), model, client.sent)

    told = whole_model() if learns else jax.lax.cond(ask.whole, whole_model, its_change)
    if learns:  # everything but the products was sent in the first of the point's rounds
        rest = jax.tree.map(lambda new: jnp.where(ask.part == 0, new, 0.0), told)
        told = replace(rest, curvature=replace(rest.curvature, products=told.curvature.products))
    reply = InteriorReply(told, jnp.where(heard, 1.0, 0.0), jnp.where(finite, 0.0, 1.0))
    place = Place(ask.id, ask.w, rows, c, J, kept, slopes)
    here = InteriorClient(
        base=select(first, place, base),
        trial=place,
        sent=() if learns else model,
        whole=jnp.where(ask.whole, tag, client.whole),
    )
    unable = InteriorClient(base, client.trial, client.sent, here.whole)
    return select(finite, here, unable), reply


def account_of(terms: Terms, ask: InteriorAsk, reply: InteriorReply) -> Account | None:
    """What a reply with a whole model says of the site's function; its gradient is known where it has no rows."""
    model, n = reply.model, terms.clients
    if not bool(ask.whole) or float(reply.broken) or not float(reply.heard):
        return None
    if not isinstance(ask.part, tuple) and int(ask.part):  # products alone
        return None
    w, size = np.asarray(ask.w), n * np.atleast_1d(model.force)
    g = n * np.asarray(model.lag) if isinstance(model.local, tuple) else None
    if isinstance(model.bent, tuple):
        return Account(w, size, n * float(model.f), g)
    K = np.zeros((terms.dim, terms.dim))
    K[np.triu_indices(terms.dim)] = model.curvature
    return Account(w, size, n * float(model.f), g, K + np.triu(K, 1).T, np.asarray(model.bent))
