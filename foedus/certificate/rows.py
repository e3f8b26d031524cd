"""Rows of constraints as they were measured: one row at one site, or how many sites keep it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foedus.base.notebook import text_table


@dataclass(frozen=True)
class Row:
    """One row of one constraint at one site: its value against its cap, and its multiplier."""

    site: str
    constraint: str
    kind: str
    value: float
    cap: float
    multiplier: float

    @property
    def slack(self) -> float:
        """How far the value is from the cap: negative when an inequality is broken, minus the distance for '=='."""
        return self.cap - self.value if self.kind == "<=" else -abs(self.value - self.cap)

    @property
    def violation(self) -> float:
        return float(np.maximum(0.0, -self.slack))  # NaN stays NaN

    @property
    def distance(self) -> float:
        """dist(c, N(μ)): PAL's Definition 1, for this row."""
        c = self.value - self.cap
        if self.kind == "==":
            return abs(c)
        return np.inf if self.multiplier < 0 else abs(c) if self.multiplier > 0 else float(np.maximum(c, 0.0))

    @property
    def complementarity(self) -> float:
        return abs(self.multiplier * (self.value - self.cap))

    def verdict(self, eps2: float) -> str:
        if not self.violation <= eps2:
            return "broken"
        return "binding" if self.kind == "==" or self.multiplier > 0 else "met"


@dataclass(frozen=True)
class RowCount:
    """A row that every site holds for itself, where only sums are seen: how many of the sites keep it within eps2."""

    constraint: str
    kind: str
    kept: int
    sites: int


def table_of(rows: Sequence[Row], eps2: float) -> list[str]:
    """Return the lines of a table: a heading, a rule, and each row with its verdict at the tolerance `eps2`."""
    titles = ("site", "constraint", "value", "cap", "slack", "multiplier", "verdict")
    cells = [
        (r.site, r.constraint, f"{r.value:.4f}", f"{'= ' if r.kind == '==' else ''}{r.cap:.4g}", f"{r.slack:+.1e}",
         f"{r.multiplier:.4g}", r.verdict(eps2))
        for r in rows
    ]  # fmt: skip
    return text_table(titles, cells, left=(0, 1, 6))
