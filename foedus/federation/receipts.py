"""Receipts of the sites' ledgers, which the server keeps: they show that a ledger was rolled back or deleted."""

import json
import re
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole

SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # the names of sites, which become those of files
RECEIPTS = ".receipts"  # the folder, beside those of the runs, with the newest receipt of each site's ledger


class Receipts:
    """The newest receipt of each site's ledger, over all runs: a site whose ledger is rolled back is told by it."""

    def __init__(self, folder: Path):
        self.folder = folder / RECEIPTS
        self.newest: dict[str, Json] = {}
        self.news: set[str] = set()

    def of(self, site: str) -> Json | None:
        """Return the newest receipt of a site, or None."""
        if site not in self.newest and (path := self._file(site)).exists():
            try:
                self.newest[site] = json.loads(path.read_text())
            except (OSError, ValueError):
                raise FoedusError(f"the receipt {path} of a site's ledger is damaged; delete it by hand.") from None
        return self.newest.get(site)

    def take(self, site: str, receipt: object) -> None:
        """Note a receipt from a reply of a site, if it is newer than the one that is known."""
        lines = receipt.get("lines") if isinstance(receipt, dict) else None
        before = self.of(site)
        if isinstance(receipt, dict) and isinstance(lines, int) and lines > (0 if before is None else before["lines"]):
            self.newest[site] = {"lines": lines, "last": str(receipt.get("last"))[:64]}
            self.news.add(site)

    def save(self) -> None:
        """Write the receipts that are new, unless another run of the same sites has written newer ones."""
        for site in self.news:
            newest = self.newest.pop(site)
            if (there := self.of(site)) is None or there["lines"] < newest["lines"]:
                self.newest[site] = newest
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(self._file(site), json.dumps(newest).encode(), private=True)
        self.news.clear()

    def _file(self, site: str) -> Path:
        if not SITE.fullmatch(site):
            raise FoedusError(f"a site's name must hold letters, digits, '.', '-' and '_' only. Got {site!r} instead.")
        return self.folder / f"{site}.json"
