"""The rounds that the interior-point methods share: a question about a point, and shares that are added up over sites.

The server asks about one point after the other. A site answers with its share in the Newton system there, in a form
that can be added up, and keeps the share that it sent last. Asked for the `whole`, it sends its share; otherwise it
sends the change since its last one, so that the server's running sum stays a sum over all sites, the silent ones with
the share that they sent last. A run may end only at a point about which every site has spoken, and not through sums of
changes alone: until then the same point is asked about again.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.interior.constants import METHOD
from foedus.base.pytrees import PyTree, select, state
from foedus.protocol.algorithm import Present

# --- a site ---


@state
class Question:
    """What every message says of the point that it asks about."""

    id: Array  # the number of the point
    rejected: Array  # the last point that the server went back from
    whole: Array  # whether to send the share itself, and not its change


@state
class Visit:
    """A site's place at a point that it was asked about."""

    id: Array
    place: PyTree


@state
class SiteState:
    """What a site keeps between rounds."""

    base: Visit  # the last point that the server went on from, as far as the site knows
    trial: Visit  # the point it was asked about last
    sent: PyTree  # what the server's sum has of this site; () where it is always asked for the whole
    whole: Array  # the tag of the last round in which it was asked for the whole

    @staticmethod
    def before(place: PyTree, sent: PyTree) -> "SiteState":
        """A site before its first answer."""
        visit = Visit(jnp.full((), -1), place)
        return SiteState(visit, visit, sent, jnp.full((), -1))

    def start(self, question: Question) -> Visit:
        """The visit from which the step to the point leads."""
        trial = self.trial
        return select((trial.id > question.rejected) & (trial.id < question.id), trial, self.base)


@state
class Reply:
    """A site's share, or its change."""

    share: PyTree
    heard: Array  # 1 for a site's first whole share of this round
    broken: Array  # 1 where the site's functions are not finite there; it then sends nothing else


def reply_of(
    site: SiteState, question: Question, tag: Array, start: Visit, base: Visit, place: PyTree, share: PyTree
) -> tuple[SiteState, Reply]:
    """A site's next state and its reply.

    Args:
        site: its state.
        question: what it was asked.
        tag: a number that is the same when the same whole share is asked for again.
        start: the visit from which it came.
        base: the visit to keep as the base.
        place: where it is now.
        share: its share there.
    """
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((share, place))]))
    heard = site.whole != tag
    keeps = not isinstance(site.sent, tuple)

    def whole() -> PyTree:
        return jax.tree.map(lambda new: jnp.where(finite & heard, new, 0.0), share)

    def change() -> PyTree:
        return jax.tree.map(lambda new, old: jnp.where(finite, new - old, 0.0), share, site.sent)

    told = jax.lax.cond(question.whole, whole, change) if keeps else whole()
    last = jnp.where(question.whole, tag, site.whole)
    there = SiteState(base, Visit(question.id, place), share if keeps else (), last)
    unable = SiteState(start, site.trial, site.sent, last)
    return select(finite, there, unable), Reply(told, jnp.where(heard, 1.0, 0.0), jnp.where(finite, 0.0, 1.0))


# --- the server ---


@state
class Inquiry:
    """What the server has heard about the point that it asks about."""

    id: Array
    rejected: Array
    whole: Array
    fresh: PyTree  # the sum of the whole shares at the point
    running: PyTree  # the sum of all sites' last shares
    heard: Array  # from how many sites there is a whole one
    broken: Array  # how many of these are not finite
    rounds: Array  # for which the point has been asked about
    part: Array  # which of the parts of a share comes next; 0 where a share has one part
    streak: Array  # rounds in a row that everybody answered

    @staticmethod
    def first(nothing: PyTree) -> "Inquiry":
        """The inquiry about the first point; `nothing` is the sum over no site."""
        zero, count = jnp.zeros(()), jnp.zeros((), int)
        return Inquiry(
            id=count,
            rejected=count - 1,
            whole=jnp.ones((), bool),
            fresh=nothing,
            running=nothing,
            heard=zero,
            broken=zero,
            rounds=count,
            part=count,
            streak=count,
        )

    @property
    def question(self) -> Question:
        return Question(self.id, self.rejected, self.whole)

    @property
    def exact(self) -> Array:
        """Whether the sum has not come through changes alone, in which rounding adds up."""
        return self.whole | (self.streak >= METHOD.streak)

    def again(self) -> "Inquiry":
        """The same point, until every site has sent its whole share there."""
        return replace(self._forgotten(), whole=jnp.ones((), bool))

    def next(self, accepted: Array, always: Array | bool = False) -> "Inquiry":
        """The next point, after one that was accepted or not; `always` asks for the whole whoever is silent."""
        return replace(
            self._forgotten(),
            id=self.id + 1,
            rejected=jnp.where(accepted, self.rejected, self.id),
            whole=always | jnp.where(self.whole, self.rounds <= 1, self.streak >= METHOD.streak),
            rounds=jnp.zeros((), int),
            part=jnp.zeros((), int),
        )

    def _forgotten(self) -> "Inquiry":
        nothing = jax.tree.map(jnp.zeros_like, self.fresh)
        return replace(self, fresh=nothing, heard=jnp.zeros(()), broken=jnp.zeros(()))


def collect(
    inquiry: Inquiry,
    replies: Reply,
    present: Present,
    clients: int,
    parts: int = 1,
    placed: Callable[[PyTree, Array], PyTree] = lambda share, part: share,
) -> tuple[Inquiry, Array, Array, Inquiry]:
    """What a round's replies add.

    Args:
        inquiry: what the server has heard.
        replies: the replies of the round.
        present: who sent them.
        clients: how many sites there are.
        parts: in how many rounds a point is asked about.
        placed: a share of one part as the share in the sum over all parts.

    Returns:
        The inquiry with the sums at the point as `running`; whether all sites have spoken about the point; whether to
        wait for more replies about it; and the inquiry that waits.
    """
    count = present.count
    total: Reply = jax.tree.map(lambda mean: count * mean, present.mean(replies))
    full = count == clients
    inquiry = replace(
        inquiry,
        rounds=inquiry.rounds + 1,
        streak=jnp.where(full, inquiry.streak + 1, 0),
        heard=inquiry.heard + jnp.round(total.heard),
        broken=inquiry.broken + jnp.round(total.broken),
    )
    share = placed(total.share, inquiry.part)
    fresh = jax.tree.map(jnp.add, inquiry.fresh, share)
    summed = jax.tree.map(jnp.add, inquiry.running, share)
    everybody = inquiry.heard >= clients
    complete = jnp.where(inquiry.whole, everybody & (inquiry.part == parts - 1), full)
    more = jnp.where(everybody, 1, 0)  # the point's next part, or the same one for those who were silent
    still = jnp.where(everybody, 0.0, inquiry.heard)
    waiting = replace(inquiry, fresh=fresh, part=inquiry.part + more, heard=still)
    return replace(inquiry, running=select(inquiry.whole, fresh, summed)), complete, inquiry.whole & ~complete, waiting
