"""Exchange: the server's messages to the sites of a run, and the checks on what comes back.

An `Exchange` refuses what has the wrong form. The `Referee` refuses what is finite, has its form, and cannot be true.
Where the server sees single replies, each is held against what the same site said before and against the other sites'
in the same round:

- A norm beyond the one that the terms announce (`norm`), or `factor` times the usual one of the sites.
- Values and gradients that belong to no convex function, where the terms are convex: for two points u and v of one site
  f(v) ≥ f(u) + ⟨g(u), v − u⟩. Gradients with the wrong sign, or scaled, or of other columns from some round on break
  it.
- A curvature with a negative eigenvalue where the terms are convex, or that is not the one its product with w is from.

An honest site breaks none of these but the first. A site that computes on wrong data from the first round to the last
is consistent with itself, and only the first rule, or a robust mean, limits what it does.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation import packing
from foedus.federation.flare.post import Post, TooLong
from foedus.federation.order import Patience
from foedus.federation.packing import one_line
from foedus.federation.plan import of_site
from foedus.federation.receipts import Receipts
from foedus.problem.terms import Terms
from foedus.protocol.accountable import Account, is_convex
from foedus.runtime.run import versions

AskSites = Callable[[Mapping[str, bytes], float], Mapping[str, object]]
"""Sends bytes to sites and returns what those sent back that answered within so many seconds."""

FIRST_EPOCHS = 2**19  # numbers from which that of the first masks' keys is drawn; a site takes up to 10^6
POINTS = 8  # of a site's last ones that a reply is held against
ROUNDING = 1e-8  # relative: what rounding may explain
FIRST_GREETING, LAST_GREETING = 0.3, 10.0  # seconds for the answer to a greeting before it is repeated
FEWEST = 4  # sites in a round whose usual norm says something about one of them

Take = Callable[[str, Json, bytes], None]
"""Takes an answer: its site, its header and its content."""

LONG_SECONDS = 60.0  # to wait at the least for what sites read their rows for

HEADERS = packing.LONGEST_HEADER + packing.LENGTH.size


class Paused(Exception):
    """A run cannot go on now and can be resumed; the message says why."""


class Missing(FoedusError):
    """A site refuses, or does not fit, and the run cannot do without it."""


class Exchange:
    """Messages to all sites and their answers; `client` maps the transport's name of a site to the problem's."""

    def __init__(
        self,
        run: str,
        client: Mapping[str, str],
        ask: AskSites,
        patience: Patience,
        note: Callable[[str], None],
        should_stop: Callable[[], bool],
        receipts: Receipts | None = None,
        signatures: Json | None = None,
        first_epoch: int | None = None,
    ):
        self.receipts, self.signatures = receipts, signatures  # the latter: the coordinator's signatures under the plan
        # a server that starts again must not call other keys by the same number; one that is played again must
        self.first_epoch = secrets.randbelow(FIRST_EPOCHS) if first_epoch is None else first_epoch
        self.post: Post | None = None  # which must not unpack more than is allowed either
        self.run, self.client, self.ask, self.patience = run, dict(client), ask, patience
        self.note, self.should_stop = note, should_stop
        self.refusals: list[str] = []
        self.most = HEADERS  # bytes of a reply; more are not unpacked
        self.waiting: dict[str, str] = {}  # sites whose people have not decided yet, and what they say

    def header(self, ask: str, round: int | None = None) -> Json:
        """Return the header that every message begins with."""
        return {"ask": ask, "run": self.run, "round": round}

    def open_reply(self, site: str, raw: object, ask: str, round: int | None = None) -> tuple[Json | None, bytes]:
        """Return a reply's header and payload; no header where it is missing or refused.

        Raises Missing where the site refuses the run, and Paused where it has lost the state it should go on from.
        """
        if raw is None:
            return None, b""
        try:
            size = raw.size if isinstance(raw, TooLong) else len(raw) if isinstance(raw, bytes | bytearray) else 0
            if size > self.most or isinstance(raw, TooLong):
                raise FoedusError(f"its reply takes {size} bytes, and the terms make it {self.most} at the most.")
            header, payload = packing.unseal(raw)
            sentence = one_line(str(header.get("sentence")))
        except FoedusError as error:
            self.refuse(site, str(error))
            return None, b""
        sender = (header.get("site"), header.get("run"), header.get("ask"), header.get("round"))
        if sender != (site, self.run, ask, round):
            self.refuse(site, f"its reply is of another run or round than {ask} {round}")
            return None, b""
        if header.get("code") in ("policy", "data", "unknown"):
            raise Missing(f"client {self.client[site]!r} refuses: {sentence}.")
        if header.get("code") == "waiting":
            if site not in self.waiting:
                self.note(f"client {self.client[site]!r}: {sentence}")
            self.waiting[site] = sentence
            return None, b""
        if header.get("code") == "lost":
            raise Paused(f"client {self.client[site]!r}: {sentence}")
        if header.get("code") != "ok":
            self.refuse(site, sentence)
            return None, b""
        if self.receipts is not None and "receipt" in header:
            self.receipts.take(site, header["receipt"])
        return header, payload

    def why(self, site: str) -> str:
        """Return why a reply of this site was last refused, to go at the end of a sentence."""
        start = f"client {self.client[site]!r}: "
        return next((f": {line.removeprefix(start)}" for line in self.refusals[::-1] if line.startswith(start)), "")

    def refuse(self, site: str, why: str) -> None:
        """Note that a reply of this site is not accepted."""
        self.refusals.append(f"client {self.client[site]!r}: {why.removesuffix('.')}")
        self.note(self.refusals[-1])

    def greet(self, ask: str, more: Json, each: Mapping[str, Json] | None = None) -> dict[str, Json]:
        """Ask until every site has answered; return the headers of the answers. `each` is what is for one site alone.

        Raises Missing where versions differ, and Paused where a site does not appear in time.
        """
        headers: dict[str, Json] = {}
        until = time.monotonic() + self.patience.hello
        headers_out = {site: self.header(ask) | more | (each or {}).get(site, {}) for site in self.client}
        apart = {site: self._receipt(site) | of_site(self.signatures, site) for site in self.client}
        messages = {site: packing.seal(header | apart[site]) for site, header in headers_out.items()}
        patience = FIRST_GREETING
        while True:
            waiting = {s: message for s, message in messages.items() if s not in headers}
            for site, raw in self.ask(waiting, min(patience, self.patience.hello)).items():
                header, _ = self.open_reply(site, raw, ask)
                if header is not None:
                    self._check_version(site, header["versions"])
                    headers[site] = header
            if self.should_stop():
                raise Paused("the run was stopped from outside")
            if len(headers) == len(self.client):
                return {site: headers[site] for site in self.client}
            if time.monotonic() > until:
                silent = next(s for s in self.client if s not in headers)
                words = self.waiting.get(silent) or self.why(silent).removeprefix(": ") or "it is not there"
                raise Paused(f"client {self.client[silent]!r}: {words}")
            # a greeting is lost where it arrives while a site's job starts, and reading a large table takes long
            patience = min(2 * patience, LAST_GREETING)
            time.sleep(1.0 if self.waiting else 0.05)  # a person's approval takes longer than a site's start

    def _receipt(self, site: str) -> Json:
        """Return what a greeting shows a site of its own ledger, as the server knows it."""
        receipt = None if self.receipts is None else self.receipts.of(site)
        return {} if receipt is None else {"receipt": receipt}

    def collect(
        self, ask: str, messages: Mapping[str, bytes], take: Take = lambda site, header, content: None,
        seconds: float = 0.0, until: Callable[[], bool] = lambda: False,
    ) -> list[str]:  # fmt: skip
        """Ask until every site has sent an answer that `take` accepts; return the sites that have not in the end.

        Args:
            ask: the kind of the messages.
            messages: by site.
            take: called with each answer's site, header and content; an error of it refuses the answer.
            seconds: to wait for answers at the least.
            until: says after each try whether enough have answered.
        """
        missing = dict(messages)
        for _ in range(1 + self.patience.misses):
            for site, raw in self.ask(missing, max(self.patience.timeout, seconds)).items() if missing else ():
                header, content = self.open_reply(site, raw, ask)
                if header is None:
                    continue
                try:
                    take(site, header, content)
                    del missing[site]
                except Missing:
                    raise
                except FoedusError as error:
                    self.refuse(site, str(error))
            if until():
                break
        return list(missing)

    def everyone(
        self, ask: str, messages: Mapping[str, bytes], take: Take = lambda site, header, content: None,
        seconds: float = 0.0,
    ) -> None:  # fmt: skip
        """Ask as `collect` does, and raise Paused where a site has not answered."""
        if silent := self.collect(ask, messages, take, seconds):
            raise Paused(f"client {self.client[silent[0]]!r} does not answer {ask!r}{self.why(silent[0])}")

    def headers(self, ask: str, more: Json) -> dict[str, Json]:
        """Send one message to all sites, which all must answer; return the headers of the answers."""
        headers: dict[str, Json] = {}
        message = packing.seal(self.header(ask) | dict(more))
        self.everyone(ask, dict.fromkeys(self.client, message), lambda s, h, _: headers.update({s: h}), LONG_SECONDS)
        return {site: headers[site] for site in self.client}

    def allow(self, size: int) -> None:
        """Let replies hold so many bytes beside what a header may take; more is not unpacked."""
        self.most = max(self.most, size + HEADERS)
        if self.post is not None:
            self.post.most = self.most

    def _check_version(self, site: str, theirs: Mapping[str, str]) -> None:
        """Refuse other versions; those that differ in the last number alone may talk, so sites update one by one."""
        for package in ("foedus", "jax"):
            ours, other = versions()[package], str(theirs.get(package))
            if other.split(".")[:2] != ours.split(".")[:2]:
                raise Missing(
                    f"client {self.client[site]!r} has {package} {other}, the server {ours}; "
                    "install the same version on both; only the last number may differ."
                )


# --- replies that cannot be true ---


def norm_of(numbers: np.ndarray) -> float:
    """Return the Euclidean norm, also where the squares would overflow."""
    largest = float(np.max(np.abs(numbers), initial=0.0))
    return largest * float(np.linalg.norm(numbers / largest)) if 0 < largest < np.inf else largest


class Offence(FoedusError):
    """A reply that cannot be true; the sentence says why."""


class LeftOut(Exception):
    """Sites that the run goes on without: one that has offended too often, or a group with such a one in it."""

    def __init__(self, sites: tuple[str, ...], sentence: str):
        super().__init__(sentence)
        self.sites, self.sentence = sites, sentence
        self.w, self.history = np.zeros(0), dict[str, np.ndarray]()  # the model and the rounds so far


class Referee:
    """Holds the replies of a run's sites against each other; `terms` are those of the problem."""

    def __init__(self, terms: Terms, patience: Patience):
        self.convex, self.patience = is_convex(terms), patience
        self.has_convex_rows = self.convex and all(c.convex for c in terms.constraints)
        self.points: dict[int, deque[Account]] = {}
        self.usual = 0.0  # the largest of the rounds' median norms
        self.offences: dict[int, int] = {}

    def judge(self, accounts: Mapping[int, Account], everybody: Mapping[int, Account]) -> dict[int, str]:
        """Return, for each new reply that cannot be true, why; `everybody` are all replies of the round so far."""
        norms = {i: norm_of(one.size) for i, one in everybody.items()}
        if len(norms) >= FEWEST:
            self.usual = max(self.usual, float(np.median(list(norms.values()))))
        verdicts: dict[int, str] = {}
        for i, account in accounts.items():
            try:
                self._check_norm(norms[i], len(norms))
                self._check_curvature(account)
                self._check_values(i, account)
            except Offence as no:
                verdicts[i] = str(no)
                self.offences[i] = self.offences.get(i, 0) + 1
                continue
            self.points.setdefault(i, deque(maxlen=POINTS)).append(replace(account, K=None, product=None))
        return verdicts

    def is_over(self, i: int) -> bool:
        """Whether a client has offended as often as it may."""
        return self.patience.offences is not None and self.offences.get(i, 0) >= self.patience.offences

    def check_measurement(self, i: int, w: np.ndarray, f: float) -> None:
        """Raise Offence where the value that a client measures at the last model is not one of its function's."""
        self._check_values(i, Account(w, np.zeros(0), f))

    def _check_norm(self, norm: float, count: int) -> None:
        check_bound(norm, self.patience)
        factor = self.patience.factor
        if factor is not None and count >= FEWEST and norm > factor * self.usual > 0:
            raise Offence(f"its reply has norm {norm:.3g}, and the sites' usual one is {self.usual:.3g}")

    def _check_curvature(self, account: Account) -> None:
        check_curvature(account, self.has_convex_rows)

    def _check_values(self, i: int, new: Account) -> None:
        if self.convex:
            for old in self.points.get(i, ()):
                check_pair(old, new)


# The rules themselves. Each holds for a mean of clients as well, and where the mean over a set breaks one, the mean
# over one half of it does: `resolution` is what the numbers of a mean were rounded to.


def check_bound(norm: float, patience: Patience) -> None:
    """Raise Offence where a norm is beyond the one that was announced."""
    if patience.norm is not None and norm > patience.norm:
        raise Offence(f"its reply has norm {norm:.3g}, and the terms allow {patience.norm:g}")


def check_curvature(account: Account, convex: bool, resolution: float = 0.0) -> None:
    """Raise Offence where a curvature does not fit its product with w, or is that of no convex function."""
    K = account.K
    if K is None:
        return
    if account.product is not None:
        product, size = K @ account.w, np.abs(K) @ np.abs(account.w)
        rounding = resolution * (1.0 + np.sum(np.abs(account.w)))
        if np.any(np.abs(product - account.product) > ROUNDING * (size + np.max(size, initial=0.0)) + rounding):
            raise Offence("its curvature and the product of it that it sends do not belong together")
    if convex:
        slack = (ROUNDING * np.max(np.abs(K)) + resolution) * len(K) + 1e-300
        try:
            np.linalg.cholesky(K + slack * np.eye(len(K)))
        except np.linalg.LinAlgError:
            least = float(np.linalg.eigvalsh(K)[0])
            raise Offence(f"its curvature has the eigenvalue {least:.3g}, and the terms are convex") from None


def check_pair(one: Account, other: Account, resolution: float = 0.0) -> None:
    """Raise Offence where values and gradients at two points belong to no convex function."""
    for start, end in ((one, other), (other, one)):
        if start.f is None or end.f is None or start.g is None:
            continue
        with np.errstate(all="ignore"):  # a run that diverges is not the site's fault
            slope = float(start.g @ (end.w - start.w))
            rise = np.abs(start.g) @ (np.abs(end.w) + np.abs(start.w))
            rounding = resolution * (2.0 + float(np.sum(np.abs(end.w - start.w))))
        if end.f < start.f + slope - ROUNDING * (1e-6 + abs(end.f) + abs(start.f) + rise) - rounding:
            raise Offence("its values and gradients are those of no convex function, and the terms are convex")
