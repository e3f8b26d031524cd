"""A site's own ledger: every release that has left it, over all runs, in one append-only file.

A line is written and flushed to the disk before its release is sent, so the ledger never lies below the truth: a
release that was perhaps sent is in it. Each line holds the digest of the one before, and a second file holds the number
of lines and the digest of the last, so a ledger that was cut, changed or deleted is noticed. Such a ledger stops the
site: it must not start from zero. Nothing depends on the clock; the time in a line is for the reader.

Older copies of both files, put back, are a whole ledger. So a reply with a release carries a receipt, the number of
lines and the digest of the last, which the server keeps and shows in the next greeting; a ledger that has fewer lines,
or others, stops the site. The digest tells nothing about a line, for each holds a random number of its own.

In a run that holds rows out, a line says behind its text whether it is about rows that train the model or about those
that are held out, and by which split. A row is one or the other, so within one split the larger of both totals counts.
Lines of another split of the same run, or without one, count in full.
"""

import hashlib
import json
import math
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import Json, alone, write_whole
from foedus.privacy import composition

FILE, HEAD, LOCK = "ledger.jsonl", "ledger.head", "ledger.lock"
BEFORE = "privacy.json"  # the record that version 0.1 kept: epsilon by the name of a run
DIGITS = ".9g"  # of a ratio: releases with the same noise are counted together
ROWS = re.compile(r" \[((?:training|held-out) rows of split [0-9a-f]{12})\]$")  # at the end of a line's text
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
    rows: str = ""  # the rows that it is about, as "training rows of split 0123456789ab"; empty: any row

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
    salt: str  # random: a line's digest leaves the site, and nobody may guess the line from it

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
            # a crash while it was begun leaves an empty file without a head
            if not self.head.exists() and not (self.path.exists() and self.path.stat().st_size):
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

    def _alone(self) -> AbstractContextManager[None]:
        """Keep other processes of this site out, so that two jobs do not both spend what is left."""
        return alone(self.lock)

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
            what = f"{r.what} [{r.rows}]" if r.rows else r.what
            lines.append(Line(now, run, request, what, *noise, previous, secrets.token_hex(16)))
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

    @property
    def receipt(self) -> Json:
        """What the server keeps of this ledger: the number of lines and the digest of the last."""
        return {"lines": len(self.lines), "last": self._last()}

    def check_receipt(self, receipt: Json) -> None:
        """Raise where the ledger is an older copy, or another one, than that of which a server has this receipt."""
        count, last = receipt.get("lines"), receipt.get("last")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise FoedusError("a receipt of a ledger names the number of its lines.")
        with self._alone():
            self._refresh()
        if len(self.lines) < count or _digest(self.lines[count - 1].text()) != last:
            raise Damaged(
                f"the site's ledger {self.path} has {len(self.lines)} lines and is not the one of which the server has "
                f"a receipt for {count}: it was replaced by an older copy, or begun anew. Put the newest copy of "
                f"{FILE} and {HEAD} back; nothing is released until then."
            )

    def counts(self, run: str, more: Iterable[Release] = ()) -> dict[str, Counter[tuple[str, float]]]:
        """Count how often each kind of release with each ratio occurs in a run, by the rows that it is about."""
        parts: dict[str, Counter[tuple[str, float]]] = {}
        for line in self.lines:
            if line.run == run:
                rows = match[1] if (match := ROWS.search(line.what)) else ""
                parts.setdefault(rows, Counter())[line.kind, float(format(line.ratio, DIGITS))] += 1
        for one in more:
            parts.setdefault(one.rows, Counter())[one.kind, float(format(one.ratio, DIGITS))] += 1
        return parts

    def total(self, delta: float, run: str | None = None, more: Iterable[Release] = (), by: str | None = None) -> float:
        """Return the total ε at δ for replacing one row, of one run or of all, with `more` releases of the run `by`.

        Within a run the noise is fixed before it begins. Over several runs it is adaptive: a later run's noise may have
        been chosen after seeing the answers of earlier ones, so only bounds that allow that are used.
        """
        more, others = list(more), [] if by is None else [by]
        runs = [run] if run is not None else list(dict.fromkeys([*(line.run for line in self.lines), *others]))
        own = {one: alternatives(self.counts(one, more if one in (run, by) else ())) for one in runs}
        if len(own) == 1:
            return max(composition.tightest(part, delta) for part in next(iter(own.values())))
        together: Counter[tuple[str, float]] = Counter()
        for parts in own.values():
            together.update(heaviest(parts))
        return composition.tightest(together, delta, adaptive=True)

    def runs(self) -> dict[str, int]:
        """Return the number of releases of each run, in the order of their first."""
        return dict(Counter(line.run for line in self.lines))


def total_of(releases: Iterable[Release], delta: float) -> float:
    """Return the total ε at δ of the releases of one run."""
    parts: dict[str, Counter[tuple[str, float]]] = {}
    for one in releases:
        parts.setdefault(one.rows, Counter())[one.kind, one.ratio] += 1
    return max(composition.tightest(part, delta) for part in alternatives(parts))


def alternatives(parts: Mapping[str, Counter[tuple[str, float]]]) -> list[Counter[tuple[str, float]]]:
    """Return what a row may have paid in a run: one of two parts where all is about one split, or else everything."""
    splits = {rows.partition(" rows of ")[2] for rows in parts}
    if len(splits) == 1 and "" not in splits:
        return list(parts.values())
    return [sum(parts.values(), Counter())]


def heaviest(parts: list[Counter[tuple[str, float]]]) -> Counter[tuple[str, float]]:
    """Return releases that cost at least as much as each of the parts, whatever is composed with them.

    Gaussian releases together are one, so the larger sum of squared ratios dominates. Laplace releases all count.
    """
    laplace = sum((_of(part, "laplace") for part in parts), Counter())
    return laplace + max((_of(part, "gaussian") for part in parts), key=_squares, default=Counter())


def _of(part: Counter[tuple[str, float]], kind: str) -> Counter[tuple[str, float]]:
    return Counter({key: count for key, count in part.items() if key[0] == kind})


def _squares(part: Counter[tuple[str, float]]) -> float:
    return sum(count * ratio**2 for (_, ratio), count in part.items())


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
