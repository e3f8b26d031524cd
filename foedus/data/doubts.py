"""Doubts about the sites' data: values that can be read without error and yet are probably not what was meant.

Each site's columns are compared with the other sites': spelling of words, ranges, missing shares, label shares. A doubt
is a sentence that names site, column and value, and says what to do; nothing is changed and nothing is refused. All
rows are compared in one place, so this is for whoever holds the files of all sites.

The limits below are chosen so that data in order raise no doubt: breast-cancer, MONK-1, Adult and Heart, dealt out at
random to 2, 5 and 20 sites, raise none (tests/data/test_doubts.py).
"""

import difflib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from foedus.base.engine import return_memory
from foedus.data.columns import (
    Column,
    Words,
    counted,
    is_invisible,
    is_number,
    listing,
    missing_in,
    number_text,
    text_of,
    visible_form,
    with_codes,
)
from foedus.data.formats import with_point
from foedus.data.sites import Cohort, Roles
from foedus.data.tables import Table


@dataclass(frozen=True)
class Doubt:
    """One thing that looks wrong: where, in which column ('' for whole rows), a sentence, and lines that mend it."""

    site: str
    column: str
    text: str
    remedy: tuple[str, ...] = ()  # lines of TOML for the section of each site in `at`
    at: tuple[str, ...] = ()  # the sites, where `site` names several
    sure: bool = False  # whether 'foedus check --fix' may write the lines without anybody's judgement

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that the remedy is for."""
        return self.at or (self.site,)

    def __str__(self) -> str:
        place = f"{self.site}, column {self.column!r}" if self.column else self.site
        sections = " and ".join(f"[data.sites.{toml_key(site)}]" for site in self.sites)
        lines = "".join(f"\n      under {sections}: {line}" for line in self.remedy)
        return f"{place}: {self.text}{lines}"


def toml_text(text: str) -> str:
    """Return a text in the quotes of TOML, with the codes of characters that nobody sees."""
    quote = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\U{ord(c):08X}" if is_invisible(c) else c for c in quote) + '"'


def toml_key(name: str) -> str:
    """Return a name as a key of TOML, in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)


def map_lines(column: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines that replace values of a column, one each; an empty text is a missing value."""
    return tuple(f"map.{toml_key(column)}.{toml_key(old)} = {toml_text(new)}" for old, new in values.items())


def scale_line(column: str, factor: float) -> str:
    """Return the line that multiplies a column."""
    return f"scale.{toml_key(column)} = {factor:.6g}"


def drop_line(column: str) -> str:
    """Return the line that leaves a column out."""
    return f"drop = [{toml_text(column)}]"


ROWS = 4000  # of a site that are enough to see the direction of its labels
MANY = 50_000  # rows whose copies are worth giving back to the system after each column
WIDE = 1000  # columns beyond which so many rows of all sites are
LEVELS = 30  # words of a column that are enough for the same
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio, the usual multiplier of hashing
ACCIDENTS = 0.05  # how many equal pairs of different rows a table may be expected to have at most
RANGES = 16  # in which the numbers of rows are compared, one after the other
EQUAL = 3  # fewer equal rows are not worth a sentence
COPIES, COMMON = 0.02, 0.05  # nor is a smaller share: of copies within a site, of rows common to two sites
RIDGE = 0.05  # on standardised columns: makes the system solvable where columns repeat each other
BELOW_CHANCE, ERRORS = 0.1, 4  # how far below one half the ranking must be, and in how many standard errors
RIGHT_ELSEWHERE = 0.6  # a model that does not rank the other sites' rows better than this says nothing
FEW = 8  # a site with fewer values of a column is not judged by them
MOST = 2000  # values of a site that are enough for a median
CHANCE = 1e-4  # what is likelier than this by chance is not doubted
LABEL_CHANCE = 0.01  # for a site with one class, which is doubted earlier: a loss cap on the other is undefined there
MOSTLY = 0.5  # a property of more than this share of the rows, or sites, is what is usual there
SHAPE_SHARE = 0.8  # a column is one of dates where this share of its words look like dates; a few may be typing errors
MISSING_EXCESS = 0.3  # how much larger the missing share of a site must be than the median of the others
NEAR = 1.3  # medians of magnitudes that are not even this far apart are not looked at further
UNIT_FACTOR = 5.0  # medians this far apart are doubted whatever the spread
CLOSE_FACTOR, CLOSE_SPREADS = 1.8, 2.5  # medians this far apart, if they also differ by so many widths of the spread
UNIT_ERROR = 0.2  # how far, in the logarithm, a factor may be from that of a change of units to be called one
OUTLIERS, GAP, FAR, FAR_LOG = 0.005, 1.5, 10.0, 5.0  # share of rows, gap in widths of the rest, robust scales
SAME = 1e-12  # from a correlation of 1: a number that is the label in other units
IDENTITY_ROWS = 20  # in fewer rows, values that all differ are no surprise
TRUTH = (("yes", "no"), ("y", "n"), ("true", "false"), ("t", "f"), ("1", "0"), ("ja", "nein"), ("oui", "non"))
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})([ T].*)?")
COMMA = re.compile(r"[-+]?\d{1,3}(\.\d{3})*,\d+|[-+]?\d+,\d+")
IDENTITY = {"id", "pid", "mrn", "uid", "uuid", "key", "index", "patientid", "caseid", "subjectid", "nr", "patient"}
UNITS = {7: "days to weeks", 12: "months to years", 18.02: "mg/dl to mmol/l of glucose",
         38.67: "mg/dl to mmol/l of cholesterol", 60: "minutes to hours", 100: "centimetres to metres",
         365.25: "days to years", 1000: "grams to kilograms"}  # fmt: skip


def _row_hashes(table: Table) -> np.ndarray:
    """One number a row, the same for equal rows; any two different rows share one with a chance of about rows²/2⁶⁴."""
    total = np.zeros(table.rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name, column in table.columns.items():
            if isinstance(column, Words):
                levels = np.array([zlib.crc32(v.encode()) + 1 for v in column.levels] + [0], dtype=np.uint64)
                bits = levels[column.codes]
            else:
                bits = np.where(np.isnan(column), 0.5, column + 0.0).view(np.uint64)  # + 0.0 makes −0 into 0
            mix = (bits + np.uint64(zlib.crc32(name.encode()))) * ODD
            mix ^= mix >> np.uint64(29)
            total += mix * (ODD + np.uint64(2 * zlib.crc32(name.encode())))
    return total


def _telling(tables: Mapping[str, Table]) -> bool:
    """Whether columns of numbers tell rows apart so well that equal rows are no accident.

    The chance that two rows agree is estimated column by column. The three most telling columns are taken to be
    independent; more are not, for columns of one table mostly depend on each other.
    """
    rows = sum(table.rows for table in tables.values())
    chances = []
    for name in next(iter(tables.values())).columns:
        columns = [table.columns.get(name) for table in tables.values()]
        numbers = [column[:ROWS] for column in columns if isinstance(column, np.ndarray)]
        if len(numbers) < len(columns):
            continue
        values = np.concatenate(numbers)
        _, counts = np.unique(values, return_counts=True)
        chances.append(float(np.sum(counts * (counts - 1.0))) / max(1.0, len(values) * (len(values) - 1.0)))
    return bool(chances) and rows * float(np.prod(sorted(chances)[:3])) < ACCIDENTS


def _shared(owners: list[np.ndarray]) -> np.ndarray:
    """The numbers that several lists have, in order; the lists are sorted, and hold each number once.

    They are compared range by range: there may be millions, and a copy of all of them takes memory.
    """
    found = [np.zeros(0, dtype=np.uint64)]
    bounds = np.arange(1, RANGES, dtype=np.uint64) * np.uint64(2**64 // RANGES)
    for parts in zip(*(np.split(own, np.searchsorted(own, bounds)) for own in owners), strict=True):
        everything = np.sort(np.concatenate(parts))
        found.append(np.unique(everything[1:][everything[1:] == everything[:-1]]))
    return np.concatenate(found)


def repeated_rows(tables: Mapping[str, Table]) -> list[tuple[str, str]]:
    """Return the sites with rows that stand twice, in the site itself or at another, with a sentence each."""
    sentences = []
    if not _telling(tables):
        return sentences
    owners = {}
    for site, table in tables.items():
        owners[site] = np.unique(_row_hashes(table))
        twice = table.rows - len(owners[site])
        if twice >= max(EQUAL, COPIES * table.rows):
            sentences.append(
                (site, f"{twice:,} of its {table.rows:,} rows are copies of others there; take the copies out, for "
                 "they count twice.")
            )  # fmt: skip
    shared = _shared(list(owners.values()))
    if not len(shared):
        return sentences
    common_rows = {site: own[np.isin(own, shared, assume_unique=True)] for site, own in owners.items()}
    for site, mine in common_rows.items():
        common = len(mine)
        if common < max(EQUAL, COMMON * len(owners[site])):
            continue
        others = sorted(name for name, own in common_rows.items() if name != site and np.isin(own, mine).any())
        if others and others[0] > site:  # of sites that share rows, the first in the alphabet is named
            sentences.append(
                (site, f"{common:,} of its rows stand at {listing(others, 3)} too; let each row belong to one site.")
            )
    return sentences


def _features(cohort: Cohort, table: Table, rows: np.ndarray, scales: Mapping[str, tuple[float, float]]) -> np.ndarray:
    """Some rows as numbers of about the same size, one 0/1 column a word; outliers are cut off at 4 scales."""
    parts = []
    for name in cohort.features:
        column = table.columns[name]
        if isinstance(column, Words):
            for level in sorted(_frequent_levels(cohort, name)):
                place = column.levels.index(level) if level in column.levels else -2
                parts.append((column.codes[rows] == place).astype(float))
        elif name in scales:
            shift, width = scales[name]
            z = (column[rows] - shift) / width
            parts.append(np.clip(np.where(np.isnan(z), 0.0, z), -4, 4))
    return np.column_stack([*parts, np.ones(len(rows))])


def _frequent_levels(cohort: Cohort, name: str) -> list[str]:
    """The words of a column that most sites have."""
    counts: dict[str, int] = {}
    for table in cohort.tables.values():
        column = table.columns[name]
        if isinstance(column, Words):
            for level in column.levels:
                counts[level] = counts.get(level, 0) + 1
    return sorted(counts, key=lambda level: -counts[level])[:LEVELS]


def _area(scores: np.ndarray, y: np.ndarray) -> float:
    """The chance that a row of class 1 has a higher score than one of class 0 (the area under the ROC curve)."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    ones = y == 1
    n1, n0 = int(ones.sum()), int((~ones).sum())
    return float((ranks[ones].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def _least_squares(parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The ridge fit to the mean of the sites' normal equations; where columns are more than rows, by rows' products."""
    pieces = [(A / (len(b) * len(parts)) ** 0.5, b / (len(b) * len(parts)) ** 0.5) for A, b in parts]
    Z, t = np.concatenate([A for A, _ in pieces]), np.concatenate([b for _, b in pieces])
    rows, columns = Z.shape
    if rows < columns:
        return Z.T @ np.linalg.solve(Z @ Z.T + RIDGE * np.eye(rows), t)
    return np.linalg.solve(Z.T @ Z + RIDGE * np.eye(columns), Z.T @ t)


def _first(column: np.ndarray) -> np.ndarray:
    """The first numbers of a column, as many as are enough."""
    return column[np.flatnonzero(~np.isnan(column))[:ROWS]]


def agreement(cohort: Cohort) -> list[tuple[str, str]]:
    """Return the sites whose labels are probably swapped: a model of the other sites ranks their rows wrongly.

    The model is least squares on the labels, fitted to the other sites' rows. Its ranking is compared with one half,
    which chance would give, in standard errors of the Wilcoxon statistic, √((n₁ + n₀ + 1)/(12·n₁·n₀)).
    """
    draw = np.random.default_rng(0)
    sample = {}
    most = ROWS if len(cohort.features) <= WIDE else max(FEW, WIDE // len(cohort.tables))
    for site, table in cohort.tables.items():
        rows = np.arange(table.rows)
        sample[site] = rows if len(rows) <= most else np.sort(draw.choice(rows, most, replace=False))
    scales = {}
    for name in cohort.features:
        columns = [t.columns[name] for t in cohort.tables.values()]
        numbers = [_first(c) for c in columns if not isinstance(c, Words)]
        if len(numbers) == len(columns) and any(map(len, numbers)):
            values = np.concatenate(numbers)
            low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
            scales[name] = (float(middle), float(high - low) / 2 or float(values.std()) or 1.0)
    x = {site: _features(cohort, table, sample[site], scales) for site, table in cohort.tables.items()}
    y = {site: cohort.y(table)[sample[site]] for site, table in cohort.tables.items()}
    two = [site for site in x if 0 < y[site].sum() < len(y[site])]
    if len(two) < 2:
        return []
    # centred at each site, so that a site's share of the classes and its level of a column do not matter
    deviations = {s: (x[s] - x[s].mean(axis=0), y[s] - y[s].mean()) for s in two}
    sentences = []
    for site in two:
        others = [s for s in two if s != site]
        w = _least_squares([deviations[s] for s in others])
        mine = _area(x[site] @ w, y[site])
        n1 = float(y[site].sum())
        n0 = len(y[site]) - n1
        error = np.sqrt((n1 + n0 + 1) / (12 * n1 * n0))
        elsewhere = float(np.median([_area(x[s] @ w, y[s]) for s in others]))
        if mine < 0.5 - max(ERRORS * error, BELOW_CHANCE) and elsewhere > RIGHT_ELSEWHERE:
            sentences.append(
                (site, f"a model of the other sites ranks its rows the wrong way round (right in {100 * mine:.0f} % of "
                 f"pairs, {100 * elsewhere:.0f} % elsewhere); look whether its labels are swapped.")
            )  # fmt: skip
    return sentences[:1] if len(two) == 2 else sentences  # of two sites, nobody can say which has swapped labels


def doubts(cohort: Cohort) -> list[Doubt]:
    """Return all doubts about the tables of a cohort, in the order of its columns; labels and whole rows come last."""
    tables, roles = cohort.tables, cohort.roles
    results: list[Doubt] = []
    rows, labels = (
        sum(table.rows for table in tables.values()),
        {site: cohort.y(table) for site, table in tables.items()},
    )
    names: list[str] = [*cohort.features, *([roles.group] if roles.group else []), roles.label]
    for name in dict.fromkeys(names):  # the group may be a feature too
        columns = {site: table.columns[name] for site, table in tables.items()}
        is_words = name in cohort.words or name == roles.group or (name == roles.label and roles.classification)
        results += _missing(name, columns)
        if is_words:
            words = {site: text_of(column).used() for site, column in columns.items()}
            results += [*_same_words(name, words, roles.positive if name == roles.label else None)]
            results += _shapes(name, words)
            # a site whose spelling is doubted already gets no second sentence on the same words
            spelt = {site for doubt in results if doubt.column == name for site in doubt.sites}
            results += [doubt for doubt in _strangers(name, words, name == roles.label) if doubt.site not in spelt]
            if name != roles.label:
                results += _constant(name, words)
        else:
            numbers = {s: c[~np.isnan(c)] for s, c in columns.items() if not isinstance(c, Words)}
            codes = [*_codes(name, numbers)]
            results += [*codes, *_units(name, numbers)]
            results += [] if codes else _outliers(name, numbers)
            if name != roles.label and any(len(c) >= FEW and np.ptp(c) == 0 for c in numbers.values()):
                results += _constant(name, {s: text_of(c) for s, c in numbers.items() if len(c)})
        if name in cohort.features:
            results += [*_identity(name, columns), *_dates(name, tables), *_tells_label(name, cohort, labels)]
        if rows > MANY:
            return_memory()  # copies of a column of many rows
    if cohort.labels:
        results += _shares(cohort)
        swap = dict(zip(cohort.labels, reversed(cohort.labels), strict=True))
        lines = map_lines(roles.label, swap) if not cohort.labels[0].startswith("not ") else ()
        results += [Doubt(site, roles.label, text, lines) for site, text in agreement(cohort)]
        return_memory()
    results += [
        Doubt(site, "", "it has one row, so that whatever is told about the site is told about this row; merge it with "
              "another site, or leave it out.")
        for site, table in tables.items() if table.rows == 1
    ]  # fmt: skip
    return results + [Doubt(site, "", text) for site, text in repeated_rows(tables)]


def structure(tables: Mapping[str, Table], roles: Roles) -> tuple[dict[str, Table], list[Doubt]]:
    """Return the tables with what keeps them from being read together mended, and a doubt on each such thing.

    A column that most sites have, and one site under another name; and numbers with a decimal comma at some sites.
    """
    here, results = dict(tables), []
    counts: dict[str, int] = {}
    for table in tables.values():
        for name in table.columns:
            counts[name] = counts.get(name, 0) + 1
    usual = [name for name, n in counts.items() if n > MOSTLY * len(tables)]
    for site, table in tables.items():
        extra = [name for name in table.columns if name not in usual]
        absent = [name for name in usual if name not in table.columns]
        for name in absent:
            own = _other_name(name, extra, absent)
            if own is None:
                continue
            extra.remove(own)
            results.append(
                Doubt(site, name, f"it has no column {name!r}, which the others have, and has {with_codes(own)}, which "
                      "they have not; if that is the same, rename it.",
                      (f"rename.{toml_key(own)} = {toml_text(name)}",), sure=True)
            )  # fmt: skip
            columns = {name if key == own else key: column for key, column in here[site].columns.items()}
            here[site] = replace(here[site], columns=columns)
    for name in usual:
        columns = {site: table.columns[name] for site, table in here.items() if name in table.columns}
        wordy = {site: column for site, column in columns.items() if isinstance(column, Words)}
        numbers = {site: _with_points(column) for site, column in wordy.items()}
        if name in roles.categorical or len(wordy) == len(columns) or any(n is None for n in numbers.values()):
            continue
        for site, column in numbers.items():
            example = next(level for level in wordy[site].levels if COMMA.fullmatch(level))
            results.append(
                Doubt(site, name, f"{example!r} is a number with a decimal comma: it counts as a word; write it with a "
                      "point, or say so.", ('decimal = ","',), sure=True)
            )  # fmt: skip
            here[site] = replace(here[site], columns={**here[site].columns, name: column})
    return here, results


def _other_name(name: str, extra: list[str], absent: list[str]) -> str | None:
    """The column of a site that is probably the one of this name: it has a word in common, or is the only one left."""

    def parts(text: str) -> set[str]:
        return set(re.split(r"[^a-z0-9]+", visible_form(text).casefold())) - {""}

    near = [own for own in extra if parts(own) & parts(name)] or difflib.get_close_matches(name, extra, n=1)
    if len(near) == 1:
        return near[0]
    return extra[0] if len(extra) == 1 == len(absent) else None


def _with_points(column: Words) -> np.ndarray | None:
    """A column of words as numbers where all of them are, some with a decimal comma; else None."""
    levels = [with_point(level) for level in column.levels]
    if not all(map(is_number, levels)) or not any(map(COMMA.fullmatch, column.levels)):
        return None
    return np.array([*map(float, levels), np.nan])[column.codes]


def _holders(words: Mapping[str, Words], level: str) -> dict[str, int]:
    """The sites that have a word, each with the number of its rows that have it."""
    counts = {s: int(np.sum(w.codes == w.levels.index(level))) for s, w in words.items() if level in w.levels}
    return {site: count for site, count in counts.items() if count}


def _levels(words: Mapping[str, Words]) -> list[str]:
    return sorted({level for column in words.values() for level in column.levels})


# words


def plain(word: str) -> str:
    """Return a word without what typists differ in: case, punctuation at its ends, hyphens, spaces."""
    bare = re.sub(r"[\s_\-]+", " ", visible_form(word).casefold()).strip(" .,;:!'\"")
    return bare or word


def _same_words(name: str, words: Mapping[str, Words], positive: str | None = None) -> Iterator[Doubt]:
    """Doubt words that mean the same: in another case, with other punctuation or spaces, or other words for yes and no.

    All remedies lead to one word: `positive` where it is among them, else the word of most sites, or of most rows.
    """
    holders = {level: _holders(words, level) for level in _levels(words)}

    def usual(levels: Iterable[str]) -> str:
        """The word that the others become."""
        return max(levels, key=lambda level: (level == positive, len(holders[level]), sum(holders[level].values())))

    pair = _usual_pair(words, positive)
    alike: dict[str, list[str]] = {}
    for level in holders:
        alike.setdefault(_meaning(level, pair), []).append(level)
    others: dict[str, dict[str, str]] = {}  # by site, words for yes and no and the usual ones
    for levels in alike.values():
        if len(levels) < 2 or (all(map(is_number, levels)) and not all(map(_is_truth, levels))):
            continue
        same_pair = [level for level in levels if plain(level) in pair]
        goal = usual(same_pair or levels)
        for level in levels:
            if level == goal:
                continue
            if plain(level) != plain(goal):
                for site in holders[level]:
                    others.setdefault(site, {})[level] = goal
                continue
            sites = list(holders[level])
            look = " that look the same" if visible_form(level) == visible_form(goal) else ""
            yield Doubt(
                listing(sites, 3), name,
                f"{with_codes(level)} ({counted(sum(holders[level].values()))}) and {with_codes(goal)} (at "
                f"{listing(holders[goal], 3)}) are two words here{look}; if they mean the same, write them the same "
                "way at every site.",
                map_lines(name, {level: goal}), tuple(sites), sure=True,
            )  # fmt: skip
    for site, changes in others.items():
        yield Doubt(
            site, name,
            f"it says {listing(map(repr, changes))} where {' and '.join(map(repr, dict.fromkeys(pair)))} are said "
            "elsewhere, so they count as different words; use one pair at every site.",
            map_lines(name, changes), sure=True,
        )  # fmt: skip


def _meaning(word: str, pair: tuple[str, ...]) -> str:
    """What a word is compared by: yes or no where the column has several words for them, else its plain form."""
    truth = next((one for one in TRUTH if plain(word) in one), None) if pair else None
    return plain(word) if truth is None else f"\0{truth.index(plain(word))}"


def _usual_pair(words: Mapping[str, Words], positive: str | None) -> tuple[str, ...]:
    """The words for yes and no in a column that has several: with `positive` where it is one, else of most sites."""
    spellings = {plain(level) for level in _levels(words)}
    whole = [pair for pair in TRUTH if set(pair) <= spellings]
    if not whole or not any(word in spellings for pair in TRUTH if pair != whole[0] for word in pair):
        return ()

    def weight(pair: tuple[str, str]) -> tuple[bool, int]:
        sites = sum(set(pair) <= set(map(plain, column.levels)) for column in words.values())
        return (positive is not None and plain(positive) in pair, sites)

    return max(whole, key=weight)


def _is_truth(word: str) -> bool:
    return any(plain(word) in pair for pair in TRUTH)


def _shapes(name: str, words: Mapping[str, Words]) -> Iterator[Doubt]:
    """Doubt dates in no clear form, and numbers with a decimal comma, that were read as words."""
    for pattern, what, advice, remedy in (
        (DATE, "a date", "each date becomes a category of its own; turn it into a number, such as days since an event, "
         "or leave the column out.", (drop_line(name),)),
        (COMMA, "a number with a decimal comma", "it counts as a word; write it with a point, or say so.",
         ('decimal = ","',)),
    ):  # fmt: skip
        fitting = {s: [v for v in w.levels if pattern.fullmatch(v)] for s, w in words.items()}
        sites = [s for s, hits in fitting.items() if hits and len(hits) >= SHAPE_SHARE * len(words[s].levels)]
        if sites:
            text = f"{fitting[sites[0]][0]!r} is {what}: {advice}"
            yield Doubt(listing(sites, 3), name, text, remedy, tuple(sites), sure=pattern is COMMA)


def _dates(name: str, tables: Mapping[str, Table]) -> Iterator[Doubt]:
    """Doubt a feature that is a date: it is read as a number of days, and later rows have later dates than any here."""
    sites = [site for site, table in tables.items() if name in table.dates]
    if sites:
        yield Doubt(
            listing(sites, 3), name,
            "it holds dates, which are read as days since 1970-01-01; a model of the date says little about later "
            "rows, so turn it into days since an event, or leave it out with drop in [data].",
        )  # fmt: skip


def _strangers(name: str, words: Mapping[str, Words], label: bool) -> Iterator[Doubt]:
    """Doubt a site most of whose rows have words that no other site has."""
    if len(words) < 2:
        return
    strange: dict[str, list[str]] = {}
    for site, column in words.items():
        others = {level for other, w in words.items() if other != site for level in w.levels}
        mine = [level for level in column.levels if level not in others]
        rows = sum(_holders({site: column}, level)[site] for level in mine)
        total = int(np.sum(column.codes >= 0))
        if total >= FEW and rows > MOSTLY * total:
            strange[site] = mine
    if len(strange) > MOSTLY * len(words) and not label:
        return  # most sites have words of their own, as with names of wards; a label must mean the same everywhere
    for site, mine in strange.items():
        yield Doubt(
            site, name,
            f"most of its rows say {listing(map(repr, mine), 3)}, which no other site says; if that is another coding "
            "of the same, write it as the others do.",
        )  # fmt: skip


def _constant(name: str, words: Mapping[str, Words]) -> Iterator[Doubt]:
    """Doubt a site with one value only, where chance would have brought others."""
    for site, column in words.items():
        used, rows = column.used(), int(np.sum(column.codes >= 0))
        if len(used.levels) != 1 or rows < FEW:
            continue
        level = used.levels[0]
        others = {s: w for s, w in words.items() if s != site}
        same, all_rows = sum(_holders(others, level).values()), sum(int(np.sum(w.codes >= 0)) for w in others.values())
        # the chance that all rows here have this value, were they drawn from those of the other sites
        if same and all_rows and (same / all_rows) ** rows >= CHANCE:
            continue
        if all_rows >= FEW and any(len(w.used().levels) > 1 for w in others.values()):
            yield Doubt(
                site, name,
                f"all of its {counted(rows)} have {level}, while the column varies elsewhere; look whether it was "
                "filled with one value there, and leave such cells empty.",
            )  # fmt: skip


# numbers


def _missing(name: str, columns: Mapping[str, Column]) -> Iterator[Doubt]:
    """Doubt a site at which many more values are missing than elsewhere."""
    shares = {site: float(np.mean(missing_in(column))) for site, column in columns.items() if len(column)}
    if max(shares.values(), default=0.0) < MISSING_EXCESS:
        return
    for site, share in shares.items():
        others = [s for other, s in shares.items() if other != site]
        rest = float(np.median(others)) if others else 0.0
        if len(columns[site]) >= FEW and share - rest >= MISSING_EXCESS:
            elsewhere = f", and {100 * rest:.0f} % elsewhere" if others else ""
            yield Doubt(
                site, name,
                f"{100 * share:.0f} % of its values are missing{elsewhere}; look whether the column has another name "
                "or coding there, or leave it out with 'drop'.",
                ('rename."ITS NAME THERE" = ' + toml_text(name),) if share == 1 else (),
            )  # fmt: skip


def _codes(name: str, numbers: Mapping[str, np.ndarray]) -> Iterator[Doubt]:
    """Doubt numbers such as −999 and 9999 that stand for 'not known'.

    A code lies beyond all other values: a negative one among numbers that are never negative, a positive one at more
    than three times the largest other value. A code of one digit is an everyday number, so it must stand twice.
    """
    ends = [end for v in numbers.values() if len(v) for end in (v.min(), v.max())]
    if not ends or not _is_code(np.array([min(ends), max(ends)])).any():
        return
    values = np.unique(np.concatenate(list(numbers.values())))
    if len(values) < 4:
        return  # the column is a short list of codes itself
    for code in (-1.0, -7.0, -8.0, -9.0, -77.0, -88.0, -99.0, -888.0, -999.0, -9999.0, -99999.0):
        if code in values and not np.any((values < 0) & ~_is_code(values)):
            yield from _code_doubts(name, numbers, code, 2 if code > -10 else 1)
    for code in (9.0, 99.0, 999.0, 9999.0, 99999.0, 999999.0):
        below = values[(values < code) & ~_is_code(values)]
        if code in values and values[-1] <= 999999 and len(below) and 3 * below[-1] < code and below[-1] > 0:
            yield from _code_doubts(name, numbers, code, 2)


def _is_code(values: np.ndarray) -> np.ndarray:
    """Which numbers are minus one, or a row of the same digit 7, 8 or 9."""
    codes = [-1.0, *(s * d * r for s in (-1, 1) for d in (7.0, 8.0, 9.0) for r in (1, 11, 111, 1111, 11111, 111111))]
    return np.isin(values, codes)


def _code_doubts(name: str, numbers: Mapping[str, np.ndarray], code: float, least: int) -> Iterator[Doubt]:
    """One doubt for each site at which the code stands in at least `least` rows."""
    for site, values in numbers.items():
        rows = int(np.sum(values == code))
        if rows >= least:
            yield Doubt(
                site, name,
                f"{number_text(code)} stands in {counted(rows)}, far from all other values; if it means 'not known', "
                "leave these cells empty.",
                map_lines(name, {number_text(code): ""}), sure=True,
            )  # fmt: skip


def _outliers(name: str, numbers: Mapping[str, np.ndarray]) -> Iterator[Doubt]:
    """Doubt single numbers far beyond all others, as a typing error makes them.

    They are few, a gap wider than all other values parts them from these, and they are far from the median in robust
    scales (the distance of the quartiles), of the logarithms too where all numbers are positive: a long tail has no
    such gap.
    """
    values = np.sort(np.concatenate([*numbers.values()]))
    if len(values) < IDENTITY_ROWS:
        return
    few = max(1, int(OUTLIERS * len(values)))
    for sign in (1.0, -1.0):
        values_up = np.sort(sign * values)
        gaps = np.diff(values_up[-few - 1 :])
        first = len(values_up) - few + int(np.argmax(gaps))  # the least of those that may be errors
        rest = values_up[:first]
        width = float(rest[-1] - rest[0])
        if not width or gaps.max() <= GAP * width or not _is_far(sign * values_up[first], sign * rest):
            continue
        low, high = sorted((sign * rest[0], sign * rest[-1]))
        for site, own in numbers.items():
            for value, rows in zip(*np.unique(own[sign * own >= values_up[first]], return_counts=True), strict=True):
                text = number_text(float(value))
                yield Doubt(
                    site, name,
                    f"{text} stands in {counted(int(rows))}, far from all other values ({number_text(float(low))} to "
                    f"{number_text(float(high))}); correct it in the file, or leave the cell empty.",
                    map_lines(name, {text: ""}),
                )  # fmt: skip


def _is_far(value: float, others: np.ndarray) -> bool:
    """Whether a value is far from the median of others, in robust scales; of logarithms, where all are positive."""

    def scales(v: float, values: np.ndarray) -> float:
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        spread = (high - low) / 1.349 or float(np.ptp(values)) / 4.0  # 1.349: of a normal law
        return abs(v - middle) / spread

    if value > 0 and others.min() > 0 and scales(np.log(value), np.log(others)) <= FAR_LOG:
        return False
    return scales(value, others) > FAR


def _units(name: str, numbers: Mapping[str, np.ndarray]) -> Iterator[Doubt]:
    """Doubt a site whose values are a multiple of the others', as in other units.

    A site is compared with all others by its median and by the 10 % and 90 % quantiles: both must have moved, so that
    a few large values do not count as a change of units.
    """
    samples = {s: v[:: max(1, len(v) // MOST)] for s, v in numbers.items()}
    rough = [float(np.median(np.abs(v[v != 0]))) for v in samples.values() if np.any(v != 0)]
    if not rough or max(rough) < NEAR * min(rough):
        return  # most columns end here
    magnitudes = {s: np.abs(v[(v != 0) & ~_is_code(v)]) for s, v in samples.items()}
    magnitudes = {s: v for s, v in magnitudes.items() if len(v) >= FEW}
    if len(magnitudes) < 2 or len(np.unique(np.concatenate(list(magnitudes.values())))) < 6:
        return
    medians = {s: float(np.median(v)) for s, v in magnitudes.items()}
    for site, values in magnitudes.items():
        others = {s: v for s, v in magnitudes.items() if s != site}
        rest = np.concatenate(list(others.values()))
        usual = float(np.median([medians[s] for s in others]))
        ratio = medians[site] / usual
        up = ratio > 1
        if len(magnitudes) == 2 and not up:
            continue  # of two sites the one with the larger values is named, and the other is not
        apart = (
            np.quantile(values, 0.1) > np.quantile(rest, 0.9)
            if up
            else np.quantile(values, 0.9) < np.quantile(rest, 0.1)
        )
        if not apart or not _spread_apart(ratio, values, rest):
            continue
        factor = ratio if up else 1 / ratio
        near = min(UNITS, key=lambda unit: abs(np.log(factor / unit)))
        hint = f", as {UNITS[near]}" if abs(np.log(factor / near)) < UNIT_ERROR else ""
        how = f"about {float(f'{factor:.2g}'):,g} times as {'large' if up else 'small'} as elsewhere"
        yield Doubt(
            site, name,
            f"its values are {how} (median {medians[site]:.4g} against {usual:.4g}{hint}); bring them to one unit.",
            (scale_line(name, (1 / near if up else near) if hint else float(f"{1 / ratio:.2g}")),), sure=bool(hint),
        )  # fmt: skip


def _spread_apart(ratio: float, values: np.ndarray, rest: np.ndarray) -> bool:
    """Whether the medians differ by a large factor, or by a small one that the spread cannot explain."""
    factor = max(ratio, 1 / ratio)
    if factor >= UNIT_FACTOR:
        return True
    width = max(float(np.subtract(*np.quantile(v, (0.9, 0.1)))) for v in (values, rest))
    return factor >= CLOSE_FACTOR and abs(float(np.median(values) - np.median(rest))) > CLOSE_SPREADS * width


def _identity(name: str, columns: Mapping[str, Column]) -> Iterator[Doubt]:
    """Doubt a feature with another value in every row, which tells rows apart and nothing else.

    A measurement to many digits differs in every row too. So the values must be whole numbers or words, and either the
    column is called like an identifier or the numbers stand close together, as numbers that were counted up do.
    """
    id_like = any(part in IDENTITY for part in re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))
    rows = sum(map(len, columns.values()))
    if rows < IDENTITY_ROWS:
        return
    dense = True
    for column in columns.values():
        values = column.codes[column.codes >= 0] if isinstance(column, Words) else column[~np.isnan(column)]
        first = values[:MOST]
        if len(np.unique(first)) < len(first) or np.any(first != np.round(first)):
            return
        if len(np.unique(values)) < len(column) or np.any(values != np.round(values)):
            return
        if not isinstance(column, Words):
            dense &= len(values) >= FEW and float(np.ptp(values)) < 3 * len(values)
    if id_like or dense:
        yield Doubt(
            listing(columns, 3), name,
            "every row has a value of its own, as an identifier has; a model learns nothing from it that holds for new "
            "rows: leave it out with drop = "
            f'["{name}"] in [data].',
        )  # fmt: skip


# labels


def _tells_label(name: str, cohort: Cohort, y_of: Mapping[str, np.ndarray]) -> Iterator[Doubt]:
    """Doubt a feature that says the label of every row: it is the label again, or was known only after it."""
    tables, label = cohort.tables, cohort.roles.label
    if sum(table.rows for table in tables.values()) < IDENTITY_ROWS:
        return
    if name in cohort.words:
        classes: dict[str, set[float]] = {}
        for site, table in tables.items():
            words, y = text_of(table.columns[name]), y_of[site]
            for code, level in enumerate(words.levels):
                classes.setdefault(level, set()).update(np.unique(y[words.codes == code]).tolist())
        labels = [next(iter(own)) for own in classes.values() if len(own) == 1]
        if len(labels) < len(classes) or len(set(labels)) < 2 or len(classes) > len(set(labels)) + 2:
            return
    else:
        columns = [table.columns[name] for table in tables.values()]
        values = np.concatenate([column for column in columns if not isinstance(column, Words)])
        y = np.concatenate([*y_of.values()])
        y, values = y[~np.isnan(values)], values[~np.isnan(values)]
        if len(y) < IDENTITY_ROWS or np.ptp(y) == 0 or np.ptp(values) == 0:
            return
        if cohort.labels:
            ones, zeros = values[y == 1], values[y == 0]
            if zeros.max() >= ones.min() and ones.max() >= zeros.min():
                return
        elif abs(np.corrcoef(values, y)[0, 1]) < 1 - SAME:
            return
    yield Doubt(
        listing(tables, 3), name,
        f"it says the label {label!r} of every row, so it is the label again, or is known only after it; leave it out "
        f"with drop = [{toml_text(name)}] in [data].",
    )  # fmt: skip


def _shares(cohort: Cohort) -> Iterator[Doubt]:
    """Doubt a site with one class only, where chance would have brought the other."""
    ones = {site: int(np.sum(cohort.y(table))) for site, table in cohort.tables.items()}
    rows = {site: table.rows for site, table in cohort.tables.items()}
    for site, table in cohort.tables.items():
        label = 1 if ones[site] else 0
        elsewhere, others = sum(ones.values()) - ones[site], sum(rows.values()) - rows[site]
        alike = (elsewhere if label else others - elsewhere) / others if others else 0.0
        if ones[site] in (0, rows[site]) and alike ** rows[site] < LABEL_CHANCE:
            column = text_of(table.columns[cohort.roles.label]).used()
            spelling = f" (its labels are {listing(map(repr, column.levels), 4)})"
            yield Doubt(
                site, cohort.roles.label,
                f"all of its {counted(table.rows)} count as {cohort.labels[label]!r}{spelling}; look whether the "
                "other class is spelt differently there, or merge the site with another.",
            )  # fmt: skip
