"""A site's own ledger: every release that has left it, over all runs, in one append-only file.

A line is written and flushed to the disk before its release is sent, so the ledger never lies below the truth: a
release that was perhaps sent is in it. Each line holds the digest of the one before, and a second file holds the number
of lines and the digest of the last, so a ledger that was cut, changed or deleted is noticed. Such a ledger stops the
site: it must not start from zero. Nothing depends on the clock; the time in a line is for the reader.
"""

import fcntl
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from foedus.errors import FoedusError
from foedus.files import write_whole
from foedus.privacy import composition

FILE, HEAD, LOCK = "ledger.jsonl", "ledger.head", "ledger.lock"
BEFORE = "privacy.json"  # the record that version 0.1 kept: epsilon by the name of a run
DIGITS = ".9g"  # of a ratio: releases with the same noise are counted together
ROUNDING = 1 + 1e-9  # a total that is equal to its limit but for rounding is within it


@dataclass(frozen=True)
class Release:
    """One figure or vector that leaves the site with noise: what it is, and how much noise it has.

    `sensitivity` is the most that it can change between neighbouring tables, and `scale` the scale of the noise.
    """

    what: str
    kind: str  # "laplace" or "gaussian"
    sensitivity: float
    scale: float
    neighbours: str = "replace"
    delta: float = 0.0

    @property
    def ratio(self) -> float:
        """Sensitivity over scale, for replacing one row; leaving one out moves a figure half as far."""
        if not (self.scale > 0 and math.isfinite(self.scale) and self.sensitivity >= 0):
            return math.inf  # no noise at all
        return (1.0 if self.neighbours == "replace" else 2.0) * self.sensitivity / self.scale


@dataclass(frozen=True)
class Line:
    """A release as a line of the ledger."""

    time: str
    run: str
    request: str  # the digest of the message that asked for it
    what: str
    kind: str
    neighbours: str  # the relation that the sensitivity is for
    sensitivity: float
    scale: float
    ratio: float  # sensitivity over scale, for replacing one row
    delta: float
    previous: str  # the digest of the line before

    def text(self) -> str:
        """The line as it stands in the file."""
        return json.dumps(asdict(self), sort_keys=True)


class Damaged(FoedusError):
    """The ledger cannot be trusted: it was cut, changed or deleted."""


class Exceeded(FoedusError):
    """A release would exceed a limit; the sentence holds no data."""


def _line(raw: bytes) -> Line | None:
    """A line of the file, or None where it is not one that `Line.text` writes."""
    try:
        line = Line(**json.loads(raw))
        return line if line.text().encode() == raw and line.ratio >= 0 else None
    except (ValueError, TypeError):
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class SiteLedger:
    """The ledger in a site's folder. Several processes of the site may use it at once."""

    def __init__(self, folder: Path):
        self.path, self.head, self.lock = folder / FILE, folder / HEAD, folder / LOCK
        self.lines: list[Line] = []
        self._read_bytes = 0
        with self._alone():
            if not self.path.exists() and not self.head.exists():
                self._begin(folder / BEFORE)
            self._refresh()

    def _begin(self, before: Path) -> None:
        """Start a ledger with what version 0.1 has recorded."""
        releases: list[tuple[str, Release]] = []
        if before.exists():
            try:
                epsilons = {str(run): float(value) for run, value in json.loads(before.read_text()).items()}
            except (OSError, ValueError, AttributeError, TypeError):
                raise Damaged(f"the record of spent privacy {before} is damaged; it must not be lost.") from None
            releases = [(run, Release("recorded by version 0.1", "laplace", v, 1.0)) for run, v in epsilons.items()]
        self.path.touch(mode=0o600)
        self._write_head()
        for run, release in releases:
            self._append(run, "", [release])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of this site out, so that two jobs do not both spend what is left."""
        with open(self.lock, "a+b") as file:
            os.chmod(self.lock, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _refresh(self) -> None:
        """Read what was added since the last look, and check the chain."""
        sentence = f"the site's ledger {self.path} is damaged or was changed; nothing is released until it is restored."
        try:
            content = self.path.read_bytes()
            head = json.loads(self.head.read_text())
            count, last = int(head["lines"]), str(head["last"])
        except (OSError, ValueError, KeyError, TypeError):
            raise Damaged(sentence) from None
        if len(content) < self._read_bytes:
            raise Damaged(sentence)
        for raw in content[self._read_bytes :].split(b"\n"):
            if not raw:
                continue
            line = _line(raw)
            if line is None or line.previous != self._last():
                if len(self.lines) < count:
                    raise Damaged(sentence)
                break  # torn by a crash while it was written, so its release was never sent
            self.lines.append(line)
            self._read_bytes += len(raw) + 1
        if len(self.lines) < count or (count and _digest(self.lines[count - 1].text()) != last):
            raise Damaged(sentence)
        if self._read_bytes < len(content):
            with open(self.path, "r+b") as file:
                file.truncate(self._read_bytes)

    def _last(self) -> str:
        return _digest(self.lines[-1].text()) if self.lines else ""

    def _write_head(self) -> None:
        write_whole(self.head, json.dumps({"lines": len(self.lines), "last": self._last()}).encode(), private=True)

    def _append(self, run: str, request: str, releases: Iterable[Release]) -> None:
        lines: list[Line] = []
        previous = self._last()
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        for r in releases:
            noise = (r.kind, r.neighbours, float(r.sensitivity), float(r.scale), float(r.ratio), float(r.delta))
            lines.append(Line(now, run, request, r.what, *noise, previous))
            previous = _digest(lines[-1].text())
        content = "".join(line.text() + "\n" for line in lines).encode()
        with open(self.path, "r+b") as file:
            file.seek(self._read_bytes)
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.truncate(self._read_bytes)
                raise
        self.lines += lines
        self._read_bytes += len(content)
        self._write_head()

    def charge(self, run: str, request: str, releases: list[Release], limits: "Limits") -> None:
        """Write the releases down, or raise `Exceeded` where they would go beyond a limit. Only then may they leave."""
        with self._alone():
            self._refresh()
            limits.check(self, run, releases)
            self._append(run, request, releases)

    def counts(self, run: str | None = None, more: Iterable[Release] = ()) -> Counter[tuple[str, float]]:
        """Count how often each kind of release with each ratio occurs, in one run or in all."""
        tally = Counter(
            (line.kind, float(format(line.ratio, DIGITS))) for line in self.lines if run in (None, line.run)
        )
        tally.update((one.kind, float(format(one.ratio, DIGITS))) for one in more)
        return tally

    def total(self, delta: float, run: str | None = None, more: Iterable[Release] = (), by: str | None = None) -> float:
        """Return the total ε at δ for replacing one row, of one run or of all, with `more` releases of the run `by`.

        Within a run the noise is fixed before it begins. Over several runs it is adaptive: a later run's noise may have
        been chosen after seeing the answers of earlier ones, so only bounds that allow that are used.
        """
        several = run is None and len({line.run for line in self.lines} | ({by} if by else set())) > 1
        return composition.tightest(self.counts(run, more), delta, adaptive=several)

    def runs(self) -> dict[str, int]:
        """Return the number of releases of each run, in the order of their first."""
        return dict(Counter(line.run for line in self.lines))


@dataclass(frozen=True)
class Limits:
    """What a policy allows: the totals of one run and of all, at δ."""

    run: float
    total: float
    delta: float

    def check(self, ledger: SiteLedger, run: str, releases: list[Release]) -> None:
        """Raise where these further releases would exceed a limit."""
        for limit, name, words in ((self.run, run, "a run"), (self.total, None, "in all")):
            if limit == math.inf:
                continue
            epsilon = ledger.total(self.delta, name, releases, run)
            if not epsilon <= limit * ROUNDING:
                raise Exceeded(
                    f"its policy allows epsilon {limit:g} {words} at delta {self.delta:g}, and with this run "
                    f"{epsilon:.4g} may be spent"
                )
