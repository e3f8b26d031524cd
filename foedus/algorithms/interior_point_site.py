"""A site's part in the interior-point method: its state, the question it is asked, and its answer.

The answer is the site's quadratic model of the shared system at the point it is asked about, in a form that can be
added up over sites. A site keeps the model that it sent last. Asked for the `whole`, it sends its model; otherwise it
sends the change since its last one, so that the server's running sum stays a sum over all sites, the silent ones with
the model that they sent last.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior_point_rows import NUMBERS, Rows, blank_rows, matrix, moved, row_sums, settled, started
from foedus.algorithms.lagrangian import Party, equalities, evaluate
from foedus.pytrees import select, state
from foedus.terms import Data, Terms

GUESS = 0.1  # a coupled row's multiplier weighs this share of ∇f_i while the server has none


@state
class OwnRows:
    """The sums that only a site with rows of its own has a part in."""

    a: Array  # Jᵀ D c
    b: Array  # Jᵀ(D/z)
    certificate: Array  # ∇f + Jᵀz with the certificate's multipliers
    numbers: Array  # NUMBERS

    @staticmethod
    def none(dim: int) -> "OwnRows":
        """What no rows add."""
        vector = jnp.zeros(dim)
        return OwnRows(vector, vector, vector, jnp.zeros(len(NUMBERS)))


@state
class Coupled:
    """A site's share in the coupled rows and their Jacobian, both over n, and the Jacobian times w_i."""

    c: Array
    J: Array
    bent: Array


@state
class QuadraticModel:
    """A site's share in the shared system at a point w_i, or the sum of such shares."""

    hessian: Array  # K_i, its upper triangle
    lag: Array  # ∇f_i/n + Jᵀz
    bent: Array  # K_i·w_i
    f: Array  # f_i/n
    force: Array  # ‖∇f_i/n‖_∞
    local: Any  # OwnRows, or () without local rows
    coupled: Any  # Coupled, or () without coupled rows

    @staticmethod
    def zero(terms: Terms) -> "QuadraticModel":
        dim, (rows, _, coupled), zero = terms.dim, terms.rows, jnp.zeros(())
        vector = jnp.zeros(dim)
        return QuadraticModel(
            hessian=jnp.zeros(dim * (dim + 1) // 2),
            lag=vector,
            bent=vector,
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


@state
class InteriorClient:
    base: Place  # the last place that the server went on from, as far as the site knows
    trial: Place  # the place it was asked about last
    sent: QuadraticModel  # what the server's sum has of this site
    whole: Array  # the number of the last point about which it sent the whole


@state
class InteriorAsk:
    """The question: the model at the point w, which is the share alpha of the way from the base to `towards`."""

    w: Array
    towards: Array
    alpha: Array
    mu: Array
    nu: Array  # the coupled rows' multipliers
    id: Array
    rejected: Array  # the last point that the server went back from
    whole: Array  # whether to send the model itself, and not its change


@state
class InteriorReply:
    model: QuadraticModel
    heard: Array  # 1 for a site's first whole model of this point
    broken: Array  # 1 where the site's functions are not finite there; it then sends nothing else


def joined(terms: Terms) -> InteriorClient:
    """A site before its first answer."""
    rows, dim, none = terms.rows[0], terms.dim, jnp.full((), -1)
    blank = Place(none, jnp.zeros(dim), blank_rows(rows), jnp.zeros(rows), jnp.zeros((rows, dim)), jnp.zeros(rows))
    return InteriorClient(blank, blank, QuadraticModel.zero(terms), none)


def answer(
    terms: Terms, client: InteriorClient, ask: InteriorAsk, data: Data, eps2: float
) -> tuple[InteriorClient, InteriorReply]:
    """The site's step to the point it is asked about, and its model there."""
    party, count = Party(terms), terms.rows[0]
    equal = equalities(party, data)[:count]
    trial = client.trial
    base = select((trial.id > ask.rejected) & (trial.id < ask.id), trial, client.base)
    shares, hessian = evaluate(party, ask.w, data)
    c, J, q, Q = shares.c[:count], shares.J[:count], shares.c[count:], shares.J[count:]
    force = jnp.max(jnp.abs(shares.g))

    first = (trial.id < 0) | (ask.id == 0)
    stepped = settled(
        moved(base.rows, base.c, base.J, ask.towards - base.w, ask.alpha, ask.mu, equal), c, ask.mu, equal
    )
    rows = select(first, started(c, J, terms.clients * force, equal), stepped)
    mu = jnp.where(ask.id == 0, jnp.sum(rows.s * rows.z) / max(1, int(np.sum(~equal))), ask.mu)

    steep = jnp.max(jnp.abs(Q), axis=1, initial=0.0)
    guess = GUESS * force / jnp.maximum(steep, 1e-6 * force + 1e-300)
    nu = jnp.where(ask.id == 0, guess, ask.nu / terms.clients)
    K = hessian(jnp.concatenate([rows.z, nu])) + (matrix(rows, J, equal) if count else 0.0)
    local, lag, kept = (), shares.g, rows.z
    if count:
        sums = row_sums(rows, c, J, mu, eps2, equal)
        lag = lag + sums.jz
        kept = sums.kept
        local = OwnRows(sums.a, sums.b, shares.g + kept @ J, sums.numbers)
    model = QuadraticModel(
        hessian=K[np.triu_indices(terms.dim)],
        lag=lag,
        bent=K @ ask.w,
        f=shares.f,
        force=force,
        local=local,
        coupled=Coupled(q / terms.clients, Q / terms.clients, Q @ ask.w / terms.clients) if terms.rows[2] else (),
    )
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((model, rows))]))
    heard = client.whole != ask.id
    told = jax.tree.map(
        lambda new, old: jnp.where(finite, jnp.where(ask.whole, jnp.where(heard, new, 0.0), new - old), 0.0),
        model,
        client.sent,
    )
    reply = InteriorReply(told, jnp.where(heard, 1.0, 0.0), jnp.where(finite, 0.0, 1.0))
    place = Place(ask.id, ask.w, rows, c, J, kept)
    here = InteriorClient(
        base=select(first, place, base),
        trial=place,
        sent=model,
        whole=jnp.where(ask.whole, ask.id, client.whole),
    )
    unable = InteriorClient(base, client.trial, client.sent, here.whole)
    return select(finite, here, unable), reply
