"""An order, which is all that a run needs beside the sites' data, and its result; both as bytes that hold no code."""

import dataclasses
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError
from foedus.base.files import Json, pack, unpack
from foedus.certificate.measure import Certificate
from foedus.federation import layout, spec
from foedus.privacy.releasing import sound_noise
from foedus.problem.pooled import Pooled
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm, name_of
from foedus.protocol.participation import Fraction, Participation, Schedule
from foedus.runtime.spine import Conclusion
from foedus.sums.masking import is_verified, masking_of
from foedus.sums.questions import count_of


@dataclass(frozen=True)
class Order:
    """All that a run needs beside the sites' data."""

    run: str  # its name
    terms: Terms
    algorithm: Algorithm
    w0: np.ndarray
    sites: tuple[str, ...]  # as the transport calls them, in the order of the clients
    names: tuple[str, ...]  # as the problem calls them
    uids: np.ndarray
    seed: int
    max_rounds: int
    participation: Participation
    own: Data | None = None  # the server's own data
    extra: tuple[dict[str, np.ndarray], ...] = ()  # arrays of the terms themselves, client by client
    secure: bool = False  # whether the server sees masked sums alone
    verify: bool = True  # whether the sites check masked sums, where they can
    holdout: Json | None = None  # which rows the sites keep out of training, and what they tell about them
    groups: tuple[str, ...] = ()  # the names of the groups that rows are in, where the run prepared them
    summary: str | None = None  # how standard errors are computed that the sites are asked for at the end
    prepared: bool = False  # whether it follows from a plan and from sums that all sites know

    @property
    def verified(self) -> bool:
        """Whether the sites check the server: where it sees sums alone, over all sites, and has no data of its own."""
        has_own_data, clients = self.own is not None, self.terms.clients
        return self.secure and self.verify and is_verified(self.algorithm, self.participation, clients, has_own_data)

    @cached_property
    def few(self) -> bool:
        """Whether some tens of rounds will do, so that functions of small arrays are not worth compiling."""
        return self.algorithm.fit(Problem.without_data(self.terms)).few_rounds

    def to_bytes(self) -> bytes:
        """Return the order as bytes."""
        arrays = {"w0": np.asarray(self.w0), "uids": np.asarray(self.uids)}
        if self.own is not None:
            arrays |= {f"own.{k}": np.asarray(v) for k, v in self.own.items()}
        for i, extra in enumerate(self.extra):
            arrays |= {f"extra.{i}.{k}": np.asarray(v) for k, v in extra.items()}
        note = {k: spec.encode(getattr(self, k)) for k in ("terms", "algorithm", "participation", "sites", "names")}
        kept = ("run", "seed", "max_rounds", "secure", "verify", "holdout", "groups", "summary")
        return pack(arrays, note | {k: getattr(self, k) for k in kept})

    @staticmethod
    def from_bytes(content: bytes, modules: tuple[str, ...] = ()) -> "Order":
        """Read an order; `modules` are those beside foedus whose functions it may name."""
        arrays, note = unpack(content)
        fields = {k: spec.decode(note[k], modules) for k in ("terms", "algorithm", "participation", "sites", "names")}
        own = {k[4:]: jnp.asarray(v) for k, v in arrays.items() if k.startswith("own.")}
        extra: list[dict[str, np.ndarray]] = [{} for _ in fields["sites"]]
        for key, value in arrays.items():
            if key.startswith("extra."):
                _, i, name = key.split(".", 2)
                extra[int(i)][name] = value
        return Order(
            run=note["run"],
            seed=note["seed"],
            max_rounds=note["max_rounds"],
            w0=arrays["w0"],
            uids=arrays["uids"],
            own=Data(own) if own else None,
            extra=tuple(extra),
            secure=bool(note.get("secure", False)),
            verify=bool(note.get("verify", True)),
            holdout=note.get("holdout"),
            groups=tuple(note.get("groups", ())),
            summary=note.get("summary"),
            **fields,
        )


def order_of(
    problem: Problem,
    algorithm: Algorithm,
    w0: ArrayLike,
    *,
    run: str,
    sites: tuple[str, ...],
    seed: int,
    max_rounds: int,
    participation: Participation,
    secure: bool = False,
    verify: bool = True,
) -> Order:
    """Return the order for a problem whose clients are these sites."""
    if isinstance(problem, Pooled):
        raise FoedusError(
            f"{name_of(algorithm)} works on all data in one place; in a federation data stay where they are."
        )
    if isinstance(participation, Fraction) and participation.delays:
        raise FoedusError(
            "the 'delays' of participation are those of a simulation; real sites take the time they take, and "
            "fd.Flare(quorum=..., late=...) says whom rounds wait for."
        )
    if len(sites) != problem.terms.clients:
        raise FoedusError(
            f"the problem has {problem.terms.clients} clients and the federation {len(sites)} sites; "
            "expected one site a client."
        )
    order = Order(
        run=run,
        terms=problem.terms,
        algorithm=over_a_network(algorithm),
        w0=np.asarray(w0, dtype=float),
        sites=sites,
        names=tuple(problem.names),
        uids=problem.stacked.uids(),
        seed=int(seed),
        max_rounds=max_rounds,
        participation=participation,
        own=problem.server,
        extra=tuple(_extra(problem, i) for i in range(problem.terms.clients)),
        secure=secure,
        verify=verify,
    )
    if order.verified:
        own = site_arrays(problem, 0) | (order.extra[0] if order.extra else {})
        _check_size(order, layout.party(layout.schema(own)))
    return order


def _check_size(order: Order, party: Data) -> None:
    """Raise where every site would get more than it should, before anybody is asked."""
    messages = layout.messages(order.algorithm, order.terms, None)
    numbers = max(map(count_of, layout.replies(order.algorithm, order.terms, messages, party)))
    replace(masking_of(order.algorithm, order.terms), verified=True).check_size(numbers, order.terms.clients)


def without(order: Order, site: str, w: np.ndarray) -> Order:
    """Return the order for the other sites, which starts from the model w."""
    if order.terms.weights is not None:
        raise FoedusError(
            f"client {order.names[order.sites.index(site)]!r} would be left out, and the weights of the sites are made "
            "for all of them; submit the run anew without it."
        )
    here = [i for i, name in enumerate(order.sites) if name != site]
    who = order.participation
    return replace(
        order,
        terms=replace(order.terms, clients=len(here)),
        w0=np.asarray(w, dtype=float),
        sites=tuple(order.sites[i] for i in here),
        names=tuple(order.names[i] for i in here),
        prepared=False,
        uids=np.asarray(order.uids)[here],
        extra=tuple(order.extra[i] for i in here) if order.extra else (),
        participation=who.only(here) if isinstance(who, Schedule) else who,
    )


def over_a_network(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm as real sites run it: with noise from the operating system, which nobody can repeat."""
    noise = sound_noise(algorithm)
    if noise is None or not dataclasses.is_dataclass(algorithm):
        return algorithm
    return replace(algorithm, noise=replace(noise, sampler="opendp"))


def _extra(problem: Problem, i: int) -> dict[str, np.ndarray]:
    """Return a client's arrays that are no data of its own: the limits and matrices of constraints."""
    own = {*problem.stacked.arrays, "weight"}
    return {k: np.asarray(v[i]) for k, v in problem.data.items() if k not in own}


def site_arrays(problem: Problem, i: int) -> dict[str, np.ndarray]:
    """Return a client's own data as a site would hold them, without filling rows."""
    count, rows = int(problem.counts[i]), problem.stacked.rows
    arrays = {k: np.asarray(problem.data[k][i]) for k in problem.stacked.arrays}
    return {k: v[:count] if v.ndim and len(v) == rows else v for k, v in arrays.items()}


@dataclass(frozen=True)
class Patience:
    """How long the server waits, for how many answers, and what it does about silent sites."""

    timeout: float = 60.0  # seconds for one answer
    hello: float = 60.0  # seconds for all sites to appear
    minimum: int | None = None  # answers a round needs; None: of everyone asked
    misses: int = 2  # after so many in a row a site is not asked any more
    probe: float = 5.0  # seconds after which a site that is not asked is greeted again
    keep_every: float = 1.0  # seconds between checkpoints; infinite: none are made
    quorum: float | None = None  # the share of the sites that a round waits for; None: all of them
    late: str = "drop"  # what becomes of an answer that comes after its round: "drop", "next" or "weighted"
    norm: float | None = None  # the largest norm of a reply, which is announced to the sites
    factor: float | None = 1e4  # a reply's norm beside the usual one of the sites, at the most
    offences: int | None = None  # after so many replies that cannot be true a site is left out; None: the run pauses


@dataclass
class Result:
    """How a run ended at the server."""

    conclusion: Conclusion
    history: dict[str, np.ndarray]
    seconds: float
    compile_seconds: float
    interrupted: bool = False  # ended early, by the coordinator's word
    pace: np.ndarray = field(default_factory=lambda: np.zeros(0))  # the seconds of each round since the last start
    refused: list[str] = field(default_factory=list)  # replies that were not accepted, and why
    rules: Json | None = None  # how the sites' tables became arrays, where the run prepared them
    left_out: dict[str, str] = field(default_factory=dict)  # clients that the run went on without, and why
    evaluation: Json | None = None  # the figures on the rows that the sites have held out
    decision: Json | None = None  # the threshold, where terms on rates chose one
    plan: Json | None = None  # what the sites have agreed to, and who has signed it
    errors: dict[str, np.ndarray] | None = None  # what standard errors are made of, summed over the sites

    def to_bytes(self) -> bytes:
        """Return the result as bytes."""
        end = self.conclusion
        arrays = {"w": end.w, "pace": self.pace} | {f"history.{k}": v for k, v in self.history.items()}
        arrays |= {f"multiplier.{k}": v for k, v in end.multipliers.items()}
        arrays |= {f"errors.{k}": v for k, v in (self.errors or {}).items()}
        apart = ("conclusion", "pace", "history", "errors")
        note = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in apart}
        figures = {"objective": end.objective, "converged": end.converged, "finite": end.finite, "reason": end.reason}
        return pack(arrays, note | figures | {"certificate": end.certificate.to_json()})

    @staticmethod
    def from_bytes(content: bytes) -> "Result":
        """Read a result that `to_bytes` wrote."""
        arrays, note = unpack(content)
        conclusion = Conclusion(
            w=arrays["w"],
            objective=note.pop("objective"),
            certificate=Certificate.from_json(note.pop("certificate")),
            multipliers={k[11:]: v for k, v in arrays.items() if k.startswith("multiplier.")},
            converged=note.pop("converged"),
            finite=note.pop("finite"),
            reason=note.pop("reason"),
        )
        history = {k[8:]: v for k, v in arrays.items() if k.startswith("history.")}
        errors = {k[7:]: v for k, v in arrays.items() if k.startswith("errors.")}
        return Result(conclusion, history, pace=arrays["pace"], errors=errors or None, **note)
