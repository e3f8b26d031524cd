"""A private certificate: what was measured of every cap under noise, with intervals, and what can be said from that."""

from dataclasses import dataclass
from typing import Any

from foedus.base.notebook import html_of, text_table

KEPT, BROKEN, UNTOLD = "kept", "broken", "cannot be told at this epsilon"


@dataclass(frozen=True)
class PrivateRow:
    """One cap at one site, measured with noise.

    `excess` is the mean over all rows of the site of (loss − cap) on the group's rows, and 0 on the others: at most 0
    exactly where the cap is kept. It was released with noise of standard deviation `noise`; `low` and `high` are the
    interval of the excess. `value` and its interval are those of the mean loss over the group, which also needs the
    group's share of the rows, measured with noise too; NaN and infinite where nothing can be said.
    """

    site: str
    constraint: str
    cap: float
    excess: float
    noise: float
    low: float
    high: float
    value: float
    value_low: float
    value_high: float
    multiplier: float  # of the excess; public, a function of what was released

    @property
    def standing(self) -> str:
        """Whether the cap is kept, broken, or cannot be told."""
        return KEPT if self.high <= 0 else BROKEN if self.low > 0 else UNTOLD


@dataclass(frozen=True)
class PrivateCertificate:
    """Every cap as it was measured under noise, each at the stated confidence by itself.

    Example:
        >>> row = PrivateRow("north", "loss on label 1", 0.5, -0.02, 0.005, -0.03, -0.01, 0.42, 0.37, 0.47, 0.1)
        >>> certificate = PrivateCertificate((row,), 0.95, 0.4, 1e-5, 4.0)
        >>> certificate.verdict(row), certificate.holds
        ('kept (95 %)', True)
    """

    rows: tuple[PrivateRow, ...]
    confidence: float
    epsilon: float  # spent on measuring, part of the run's total
    delta: float
    loss_clip: float  # the largest loss of an example that counts, over all caps

    @property
    def holds(self) -> bool:
        """Whether every cap is kept, each with the stated confidence."""
        return all(row.standing == KEPT for row in self.rows)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The names of the caps, each once, in their order."""
        return tuple(dict.fromkeys(row.constraint for row in self.rows))

    def caps(self, constraint: str) -> list[float]:
        """The limits of one cap at the sites, each once, from the smallest."""
        return sorted({row.cap for row in self.rows if row.constraint == constraint})

    def verdict(self, row: PrivateRow) -> str:
        """The standing of a row with the confidence: "kept (95 %)"."""
        return row.standing if row.standing == UNTOLD else f"{row.standing} ({100 * self.confidence:g} %)"

    def __str__(self) -> str:
        counts = {name: sum(row.standing == name for row in self.rows) for name in (KEPT, BROKEN, UNTOLD)}
        head = (
            f"private certificate: {counts[KEPT]} of {len(self.rows)} caps kept, {counts[BROKEN]} broken, "
            f"{counts[UNTOLD]} cannot be told, each at {100 * self.confidence:g} % confidence; measured with epsilon "
            f"{self.epsilon:.3g} at delta {self.delta:g}, part of the total; losses of single examples count up to "
            f"{self.loss_clip:.3g}"
        )
        titles = ("site", "constraint", "value about", "interval", "cap", "noise", "multiplier", "verdict")
        cells = [
            (r.site, r.constraint, f"{r.value:.4g}", f"{r.value_low:.4g} to {r.value_high:.4g}", f"{r.cap:.4g}",
             f"{r.noise:.2g}", f"{r.multiplier:.3g}", self.verdict(r))
            for r in self.rows
        ]  # fmt: skip
        return "\n".join([head, *text_table(titles, cells, left=(0, 1, 7))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(str(self))

    @staticmethod
    def from_json(record: dict[str, Any]) -> "PrivateCertificate":
        """Read what `dataclasses.asdict` made."""
        return PrivateCertificate(**{**record, "rows": tuple(PrivateRow(**row) for row in record["rows"])})
