"""Exchange: the server's messages to the sites of a run, and the checks on what comes back."""

import time
from collections.abc import Callable, Mapping

from foedus.errors import FoedusError
from foedus.files import Json
from foedus.run import versions
from foedus.runtime.flare import packing
from foedus.runtime.flare.order import Patience
from foedus.runtime.flare.post import TooLong

AskSites = Callable[[Mapping[str, bytes], float], Mapping[str, object]]
"""Sends bytes to sites and returns what those sent back that answered within so many seconds."""

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
    ):
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
        except FoedusError as error:
            self.refuse(site, str(error))
            return None, b""
        sender = (header.get("site"), header.get("run"), header.get("ask"), header.get("round"))
        if sender != (site, self.run, ask, round):
            self.refuse(site, f"its reply is of another run or round than {ask} {round}")
            return None, b""
        if header.get("code") in ("policy", "data", "unknown"):
            raise Missing(f"client {self.client[site]!r} refuses: {header.get('sentence')}.")
        if header.get("code") == "waiting":
            if site not in self.waiting:
                self.note(f"client {self.client[site]!r}: {header.get('sentence')}")
            self.waiting[site] = str(header.get("sentence"))
            return None, b""
        if header.get("code") == "lost":
            raise Paused(f"client {self.client[site]!r}: {header.get('sentence')}")
        if header.get("code") != "ok":
            self.refuse(site, str(header.get("sentence")))
            return None, b""
        return header, payload

    def why(self, site: str) -> str:
        """Return why a reply of this site was last refused, to go at the end of a sentence."""
        start = f"client {self.client[site]!r}: "
        return next((f": {line.removeprefix(start)}" for line in self.refusals[::-1] if line.startswith(start)), "")

    def refuse(self, site: str, why: str) -> None:
        """Note that a reply of this site is not accepted."""
        self.refusals.append(f"client {self.client[site]!r}: {why.removesuffix('.')}")
        self.note(self.refusals[-1])

    def greet(self, ask: str, more: Json | None = None) -> dict[str, Json]:
        """Ask until every site has answered; return the headers of the answers.

        Raises Missing where versions differ, and Paused where a site does not appear in time.
        """
        headers: dict[str, Json] = {}
        until = time.monotonic() + self.patience.hello
        while True:
            message = packing.seal(self.header(ask) | dict(more or {}))
            waiting = {s: message for s in self.client if s not in headers}
            for site, raw in self.ask(waiting, min(5.0, self.patience.hello)).items():
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
            time.sleep(1.0 if self.waiting else 0.2)  # a person's approval takes longer than a site's start

    def everyone(self, ask: str, more: Json) -> dict[str, Json]:
        """Send one message to all sites, which all must answer; return the headers of the answers."""
        messages = {site: packing.seal(self.header(ask) | dict(more)) for site in self.client}
        headers: dict[str, Json] = {}
        for _ in range(1 + self.patience.misses):
            missing = {site: message for site, message in messages.items() if site not in headers}
            for site, raw in self.ask(missing, max(self.patience.timeout, 60.0)).items() if missing else ():
                header, _ = self.open_reply(site, raw, ask)
                if header is not None:
                    headers[site] = header
        if silent := [site for site in self.client if site not in headers]:
            raise Paused(f"client {self.client[silent[0]]!r} does not answer {ask!r}{self.why(silent[0])}")
        return {site: headers[site] for site in self.client}

    def _check_version(self, site: str, theirs: Mapping[str, str]) -> None:
        """Refuse other versions; those that differ in the last number alone may talk, so sites update one by one."""
        for package in ("foedus", "jax"):
            ours, other = versions()[package], str(theirs.get(package))
            if other.split(".")[:2] != ours.split(".")[:2]:
                raise Missing(
                    f"client {self.client[site]!r} has {package} {other}, the server {ours}; "
                    "install the same version on both; only the last number may differ."
                )
