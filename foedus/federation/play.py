"""A run from an order, or from a request that becomes one, to its result."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.files import Json, pack, unpack, write_whole
from foedus.data.preprocess import Preprocessing
from foedus.federation.exchange import AskSites, Exchange, LeftOut
from foedus.federation.flare.post import Post
from foedus.federation.monitor import RunMonitor
from foedus.federation.order import Order, Patience, Result, without
from foedus.federation.plan import Request, record_of
from foedus.federation.preparation import prepare
from foedus.federation.receipts import Receipts
from foedus.federation.server import ServerSession
from foedus.protocol.participation import Fraction
from foedus.sums.masking import check_everybody

FILE = "left-out.npz"


class Departures:
    """The sites that have left a run, in the run's folder at the server."""

    def __init__(self, folder: Path):
        self.path = Path(folder) / FILE
        self.reasons: dict[str, str] = {}  # by the transport's name of a site
        self.refusals: list[str] = []
        self.history: dict[str, np.ndarray] = {}
        self.names: dict[str, str] = {}  # the problem's name of a site
        if self.path.exists():
            arrays, note = unpack(self.path.read_bytes())
            self.w = arrays.pop("w")
            self.history = {name.removeprefix("history."): values for name, values in arrays.items()}
            self.reasons, self.refusals, self.names = note["reasons"], note["refusals"], note["names"]

    def add(self, order: Order, wrong: LeftOut, refusals: list[str]) -> None:
        """Note that sites have left, and keep it on the disk; raise where too few would be left."""
        names = {site: order.names[order.sites.index(site)] for site in wrong.sites}
        if len(order.sites) - len(names) < 2:
            words = ", ".join(repr(name) for name in names.values())
            raise FoedusError(f"client {words} would be left out {wrong.sentence}; one site alone is no federation.")
        self.reasons |= dict.fromkeys(wrong.sites, wrong.sentence)
        self.names |= names
        self.refusals += refusals
        self.w, self.history = wrong.w, dict(wrong.history)
        arrays = {"w": self.w} | {f"history.{column}": values for column, values in self.history.items()}
        write_whole(self.path, pack(arrays, {"reasons": self.reasons, "refusals": self.refusals, "names": self.names}))

    def apply(self, order: Order) -> Order:
        """Return the order without those who have left."""
        for site in self.reasons:
            if site in order.sites:
                order = without(order, site, self.w)
        return order

    def complete(self, result: Result) -> None:
        """Write into a result who has left, and over whom its certificate is."""
        result.left_out = {self.names[site]: why for site, why in self.reasons.items()}
        result.refused = [*self.refusals, *result.refused]
        end = result.conclusion
        result.conclusion = replace(end, certificate=replace(end.certificate, without=tuple(result.left_out)))


@float64()
def play(
    work: Order | Request,
    folder: Path,
    ask: AskSites,
    patience: Patience,
    note: Callable[[str], None],
    should_stop: Callable[[], bool],
    monitor: RunMonitor | None = None,
    post: Post | None = None,
    signatures: Json | None = None,
    first_epoch: int | None = None,
    prepared: Callable[[Order, Preprocessing], None] = lambda order, rules: None,
) -> Result:
    """Play an order to its end; a request first becomes one by preparing the data together with the sites.

    Where a site has to be left out, the others go on from the last model, with terms for as many as they are.
    `first_epoch` is the number of the masks' first keys, where the run may be played again from its beginning;
    `prepared` is called once the data are prepared.
    """
    rules = None
    if isinstance(work, Order):
        order = work
    else:
        if work.plan.secure:
            check_everybody(work.plan.algorithm(len(work.sites)), Fraction(), len(work.sites), patience.minimum)
        names = {site: site for site in work.sites}
        receipts = Receipts(Path(folder).parent)
        try:
            order, rules = prepare(
                work, Exchange(work.run, names, ask, patience, note, should_stop, receipts, signatures, first_epoch)
            )
            prepared(order, rules)
        finally:
            receipts.save()
    if order.secure:
        check_everybody(order.algorithm, order.participation, order.terms.clients, patience.minimum)
    departures = Departures(folder)
    order = departures.apply(order)
    while True:
        session = ServerSession(
            order, folder, ask, patience, note, should_stop, monitor, post, departures.history, signatures, first_epoch
        )
        try:
            result = session.play()
            break
        except LeftOut as wrong:
            for site in wrong.sites:
                note(f"client {session.client[site]!r} is left out {wrong.sentence}")
            departures.add(order, wrong, session.exchange.refusals)
            order = departures.apply(order)
    departures.complete(result)
    result.rules = None if rules is None else rules.to_json()
    result.plan = record_of(work, signatures, session.numbers)
    return result
