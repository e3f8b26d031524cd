"""The columns of all sites side by side, in a few characters each, for whoever compares them by eye."""

import numpy as np

from foedus.data.columns import Words, missing_in, text_of
from foedus.data.sites import Cohort
from foedus.data.tables import Table


def side_by_side(cohort: Cohort, most: int = 4) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of a table of the columns at each site; of many sites, the least and the greatest."""
    tables = cohort.tables
    names = dict.fromkeys([*cohort.features, cohort.roles.label])
    few = len(tables) <= most
    head = ["column", *tables] if few else ["column", "least at", "", "most at", ""]
    rows = []
    for name in names:
        is_words = name in cohort.words or (name == cohort.roles.label and bool(cohort.labels))
        cells = {site: _cell(table, name, is_words) for site, table in tables.items()}
        if few:
            rows.append([name, *(text for _, text in cells.values())])
        else:
            low, high = (pick(cells, key=lambda site: cells[site][0]) for pick in (min, max))
            rows.append([name, low, cells[low][1], high, cells[high][1]])
    return head, rows


def _cell(table: Table, name: str, is_words: bool) -> tuple[float, str]:
    """The figure to order sites by, and a column at a site in a few characters."""
    column = table.columns[name]
    missing = float(np.mean(missing_in(column)))
    absence = f", {100 * missing:.0f} % missing" if missing >= 0.005 else ""
    if is_words:
        words = text_of(column).used()
        if not words.levels:
            return 0.0, "no value"
        counts = np.bincount(words.codes[words.codes >= 0], minlength=len(words.levels))
        top = int(np.argmax(counts))
        share = float(counts[top] / counts.sum())
        return share, f"{words.levels[top]} {100 * share:.0f} %{absence}"
    assert not isinstance(column, Words)
    values = column[~np.isnan(column)]
    if not len(values):
        return float("-inf"), "no value"
    low, middle, high = (float(q) for q in np.quantile(values, (0, 0.5, 1)))
    return middle, f"{_short(middle)} [{_short(low)}, {_short(high)}]{absence}"


def _short(value: float) -> str:
    """A number to four digits, without an exponent below a million."""
    return f"{float(f'{value:.4g}'):,g}"
