"""A simulation with a clock: clients take time for their answers, and rounds wait as they do over real sites.

The sessions of a server and of sites, which know no transport, are played in this process over a post whose clock moves
only while somebody waits. So whom a round waits for, and what late answers count, is the code that real sites run.
"""

import dataclasses
import heapq
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError
from foedus.federation.flare.post import Answer, ask
from foedus.federation.monitor import RunMonitor
from foedus.federation.order import Patience, order_of, site_arrays
from foedus.federation.policy import Policy, SiteFile, Source
from foedus.federation.server import ServerSession
from foedus.federation.site import SiteSession
from foedus.privacy.releasing import sound_noise
from foedus.protocol.participation import Fraction
from foedus.runtime.checkpoint import Checkpoint
from foedus.runtime.spine import Job, Outcome, Watch


class VirtualPost:
    """Answers arrive after each site's delay, by a clock that moves only while somebody waits."""

    def __init__(self, sites: Mapping[str, SiteSession], delays: Mapping[str, float]):
        self.sites, self.delays, self.time, self.ticket, self.most = sites, delays, 0.0, 0, 2**62
        self.queue: list[tuple[float, int, str, bytes]] = []
        self.missing: set[str] = set()

    def send(self, messages: Mapping[str, bytes]) -> int:
        self.ticket += 1
        for site, message in messages.items():
            answer = (self.time + self.delays[site], self.ticket, site, self.sites[site].answer(message))
            heapq.heappush(self.queue, answer)
        return self.ticket

    def take(self, seconds: float) -> Answer | None:
        if not self.queue or self.queue[0][0] > self.time + seconds:
            self.time += seconds
            return None
        moment, ticket, site, content = heapq.heappop(self.queue)
        self.time = max(self.time, moment)
        return Answer(ticket, site, content, self.time)

    def give_back(self, answers: list[Answer]) -> None:
        for one in answers:
            assert isinstance(one.content, bytes)
            heapq.heappush(self.queue, (one.time, one.ticket, one.site, one.content))

    def now(self) -> float:
        return self.time


def own_modules(job: Job) -> tuple[str, ...]:
    """Return the modules beside foedus whose functions and classes a run uses."""
    terms = job.fit.problem.terms
    things = [terms.objective, terms.loss, *terms.constraints, job.fit.algorithm]
    functions = [vars(one).get("function") for one in terms.constraints]
    modules = {getattr(one, "__module__", None) or type(one).__module__ for one in (*things, *functions) if one}
    return tuple(sorted(name for name in modules if not name.startswith("foedus")))


class Delayed:
    """The runtime of a simulation whose participation has delays."""

    def play(self, job: Job, *, watch: Watch | None, checkpoint: Checkpoint | None) -> Outcome:
        """Play the run by the clock; its time after each round is the column 'clock' of the history."""
        who = job.participation
        assert isinstance(who, Fraction)
        if checkpoint is not None or job.masking is not None or sound_noise(job.fit.algorithm) is not None:
            raise FoedusError("the 'delays' of participation are for runs without checkpoint=, secure=True and noise.")
        problem = job.fit.problem
        names = tuple(f"site-{i + 1}" for i in range(problem.terms.clients))
        plain = dataclasses.replace(who, delays=(), quorum=None, late="drop")
        order = order_of(
            problem, job.fit.algorithm, job.w0, run="delayed", sites=names, seed=job.seed, max_rounds=job.max_rounds,
            participation=plain,
        )  # fmt: skip
        patience = Patience(
            timeout=100 * max(who.delays),
            hello=100 * max(who.delays),
            keep_every=1e18,
            quorum=who.quorum,
            late=who.late,
        )
        policy = Policy(modules=own_modules(job), min_subset=1, min_sites=1, max_message=2**62)
        with tempfile.TemporaryDirectory(prefix="foedus-") as place:
            folder, sites = Path(place), {}
            for i, site in enumerate(names):
                np.savez(folder / f"{site}.npz", **site_arrays(problem, i))  # pyright: ignore[reportArgumentType]
                sites[site] = SiteSession(site, SiteFile(Source(folder / f"{site}.npz"), policy), folder / site)
            post, monitor = VirtualPost(sites, dict(zip(names, who.delays, strict=True))), RunMonitor()
            monitor.watch = watch
            session = ServerSession(
                order, folder / "server", lambda messages, seconds: ask(post, messages, seconds, lambda: False),
                patience, monitor=monitor, post=post,
            )  # fmt: skip
            result = session.play()
        return Outcome(
            conclusion=result.conclusion,
            history=result.history | {"clock": np.cumsum(result.pace)},
            interrupted=result.interrupted,
            seconds=result.seconds,
            compile_seconds=result.compile_seconds,
            refused=tuple(result.refused),
        )
