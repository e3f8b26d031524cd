"""How long the full grid takes, computed from the rows of the quick one.

A row's processor seconds without compiling grow with the numbers that its sites hold, and, where the quick run was
still on its way at its limit of rounds, with that limit. Compiling is paid once for each data set and algorithm. What
comes out is no measurement, and the page says so, with full rows that were measured beside it.
"""

from collections.abc import Iterable, Sequence
from statistics import mean, median

from foedus.base.files import Json
from foedus_lab.study.grid import FULL, QUICK, Cell, cells
from foedus_lab.study.methods import TUNED
from foedus_lab.study.profiles import with_figures
from foedus_lab.study.rows import ACCURACIES, KEY, tag
from foedus_lab.study.tables import SOURCES

VARIABLES = (100, 300)  # of a quadratic program in the quick and the full grid; its cost grows with their square
STRICTEST = f"rounds_{tag(ACCURACIES[-1])}"


class Forecast:
    """The expected processor seconds of cells of the full grid, from measured rows of the quick grid."""

    def __init__(self, quick: Iterable[Json]):
        self.rows: dict[tuple[str, str, str], list[Json]] = {}
        for row in with_figures(quick):
            self.rows.setdefault((row["problem"], row["algorithm"], row["settings"]), []).append(row)

    def seconds(self, cell: Cell) -> float | None:
        """Return the processor seconds of a full cell; None where no quick row has its problem, algorithm and kind."""
        alike = self.rows.get((cell.problem, cell.algorithm, cell.settings), [])
        alike = [r for r in alike if r["data"] == cell.data] or alike
        if not alike:
            return None
        tries = (FULL.tries + 1) / (QUICK.tries + 1) if cell.settings == TUNED else 1.0
        work = mean(_work(row, cell.data) for row in alike) * tries
        compiling = mean(r["compile_seconds"] for r in alike if r["seed"] == min(a["seed"] for a in alike))
        return work + (tries * compiling if cell.seed == 0 else 0.0)

    def total(self) -> float:
        """Return the processor seconds of the whole full grid; cells that nothing is known of count nothing."""
        return sum(self.seconds(cell) or 0.0 for cell in cells(FULL))

    def checks(self, full: Sequence[Json]) -> list[float]:
        """Return measured over computed seconds for measured rows of the full grid."""
        ratios = []
        for row in with_figures(full):
            expected = self.seconds(Cell(*(row[name] for name in KEY)))
            if expected:
                ratios.append(row["measuring_seconds"] / expected)
        return ratios

    def sentence(self, full: Sequence[Json]) -> str:
        """Return what the full grid takes, how that was computed, and how it compares with measured rows."""
        hours = self.total() / 3600
        text = f"That is {hours:.0f} hours of a processor, computed from the quick rows and not measured"
        if ratios := self.checks(full):
            text += (
                f"; {len(ratios)} rows of the full grid that were measured took {median(ratios):.2g} times what was "
                f"computed for them (median; {min(ratios):.2g} to {max(ratios):.2g})"
            )
        return text + "."


def _work(row: Json, data: str) -> float:
    """Processor seconds of a quick row without compiling, brought to the size and the limits of the full grid."""
    quick, full = _numbers(row["data"], True, row["columns"]), _numbers(data, False, row["columns"])
    on_its_way = row[STRICTEST] is None and row["rounds_played"] >= QUICK.rounds
    length = FULL.rounds / QUICK.rounds if on_its_way else 1.0
    return max(0.0, row["measuring_seconds"] - row["compile_seconds"]) * length * full / quick


def _numbers(data: str, quick: bool, columns: int) -> float:
    """The numbers of all sites' rows; those of a quadratic program are its variables squared."""
    if data not in SOURCES:
        return float(VARIABLES[0 if quick else 1] ** 2)
    sites, rows = SOURCES[data].quick if quick else SOURCES[data].full
    return float(sites * rows * columns)
