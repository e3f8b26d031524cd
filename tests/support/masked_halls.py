"""A server and sites in one process whose sums are masked."""

from dataclasses import replace

from halls import QUICK, Hall, KnownSite

from foedus.federation import packing
from foedus.federation.order import Order, Result, order_of
from foedus.federation.plan import greetings_of, sign
from foedus.federation.policy import SiteFile, Source
from foedus.federation.server import ServerSession
from foedus.sums.masking import by_sums
from foedus.sums.messages import RevealOrder
from foedus.sums.play import trial_project

NAMES = tuple(f"site-{i + 1}" for i in range(5))


SERVER, IDENTITIES, COORDINATOR = trial_project(NAMES)


class MaskedHall(Hall):
    """The parties of a run with masked sums, in one room."""

    def __init__(self, folder, problem, algorithm, **more):
        super().__init__(folder, problem, by_sums(algorithm), **more)
        self.order = Order.from_bytes(
            order_of(
                self.problem, self.algorithm, self.order.w0, run="r1", sites=self.sites, seed=self.order.seed,
                max_rounds=self.order.max_rounds, participation=self.order.participation, secure=True,
            ).to_bytes(),
            modules=("constrained_cases",),
        )  # fmt: skip

    def unchecked(self):
        """The same parties in a run whose sums the sites do not check."""
        self.order, self.policy = replace(self.order, verify=False), replace(self.policy, verify=False)
        self.open_sites()
        return self

    def open_sites(self):
        self.site = {
            s: KnownSite(
                s, SiteFile(Source(self.folder / f"{s}.npz"), self.policy), self.folder / s, self.notes.append,
                IDENTITIES[s],
            )
            for s in self.sites
        }  # fmt: skip
        for site in self.site.values():
            site.seed = self.order.seed

    def play(self, ask=None, patience=QUICK) -> Result:
        session = ServerSession(self.order, self.folder / "server", ask or self.ask, patience, self.notes.append)
        return Result.from_bytes(session.play().to_bytes())


class SignedHall(MaskedHall):
    """Sites that know their project's root, and a plan that its coordinator has signed."""

    def open_sites(self):
        super().open_sites()
        for site in self.site.values():
            site.root = COORDINATOR.root

    def signatures(self, signer=COORDINATOR):
        return sign(greetings_of(self.order), signer)

    def play(self, ask=None, patience=QUICK, *, order=None, signatures=None) -> Result:
        """Play an order, by default the hall's own under the coordinator's signatures."""
        signatures = self.signatures() if signatures is None else signatures
        folder, one = self.folder / "server", order or self.order
        session = ServerSession(one, folder, ask or self.ask, patience, self.notes.append, signatures=signatures)
        return Result.from_bytes(session.play().to_bytes())


def without(hall: Hall, ask: str, rounds: set, site: str = "site-2"):
    """An `ask` in which one site's answers to some messages are lost."""

    def one(messages, timeout):
        replies = dict(hall.ask(messages, timeout))
        if site in replies:
            header, _ = packing.unseal(replies[site])
            number = header["round"]
            if header["ask"] == "reveal":
                number = RevealOrder.from_bytes(packing.unseal(messages[site])[1]).round
            if header["ask"] == ask and number in rounds:
                del replies[site]
        return replies

    return one


class Liar:
    """A server that follows the protocol until its hand changes a message."""

    def __init__(self, hall, change):
        self.hall, self.change = hall, change

    def ask(self, messages, timeout):
        changed = {}
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            changed[site] = packing.seal(*self.change(site, header, payload))
        return self.hall.ask(changed, timeout)
