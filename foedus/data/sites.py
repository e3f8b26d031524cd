"""The roles of the columns of the sites' tables (label, group, features), checked so that all sites mean the same.

`gather` makes this check where all tables are in one place. Where they are not, each site sends a `Sketch`: the names
of its columns, which of them hold words, and the values of its label and its group. No row leaves the site, and no
error message of the server contains a value of a feature.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.data.columns import Words, is_number, listing, missing_in, text_of, visible_form, with_codes
from foedus.data.tables import Table

RULES = ("mean", "drop", "error")  # for missing values
EMPTY, NUMBERS, WORDS = "nothing", "numbers", "words"  # what a column holds
TRUE_FALSE = ({"0", "1"}, {"-1", "1"}, {"false", "true"}, {"False", "True"})


@dataclass(frozen=True)
class Roles:
    """Which column is the label, which the group, which are features, and what is done about missing values.

    `cluster` says which rows belong together, for standard errors; its values never leave a site.

    `missing`: "mean" fills numbers with the mean over all sites and makes missing words a category of their own; "drop"
    leaves out rows with a missing value; "error" refuses them. A row without label or group is left out by "drop" and
    refused otherwise.
    """

    label: str
    positive: str | None = None
    group: str | None = None
    cluster: str | None = None
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: str = "mean"
    max_categories: int = 50
    classification: bool = True


@dataclass(frozen=True)
class Cohort:
    """The tables of all sites, whose columns agree; `words` are the features with categories, the rest are numbers."""

    tables: dict[str, Table]
    roles: Roles
    features: tuple[str, ...]
    words: frozenset[str]
    labels: tuple[str, ...]  # the label's values, of which the second counts as 1; empty for a regression
    groups: tuple[str, ...]
    server: Table | None = None
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def everyone(self) -> dict[str, Table]:
        """The tables of all sites, and the server's own where it has one."""
        return self.tables if self.server is None else {**self.tables, "server": self.server}

    def y(self, table: Table) -> np.ndarray:
        """Return the label of each row: 0/1 for classes, the number itself in a regression."""
        column = table.columns[self.roles.label]
        if not self.roles.classification:
            assert not isinstance(column, Words)
            return column
        return _equals(text_of(column), self.labels[1]).astype(float)

    def group(self, table: Table) -> np.ndarray | None:
        """Return the group of each row, numbered in the order of `groups`, −1 for others; None without groups."""
        if self.roles.group is None:
            return None
        column = text_of(table.columns[self.roles.group])
        numbers = {level: float(i) for i, level in enumerate(self.groups)}
        places = np.array([numbers.get(level, -1.0) for level in column.levels])
        return places[column.codes]

    def cluster(self, table: Table) -> np.ndarray | None:
        """Return for each row a number of its cluster at this site; None without clusters."""
        if self.roles.cluster is None:
            return None
        return text_of(table.columns[self.roles.cluster]).codes.astype(float)


def _equals(column: Words, level: str) -> np.ndarray:
    return column.codes == (column.levels.index(level) if level in column.levels else -2)


def by_column(table: Table, name: str) -> dict[str, Table]:
    """Divide a table into one a site, by the column `name`, which says where each row comes from."""
    column = text_of(table.column(name, "'site' in [data]"))
    if np.any(column.codes < 0):
        row = int(np.argmax(column.codes < 0))
        raise FoedusError(f"{table.place(row)}: the column {name!r} is empty; expected the site of the row.")
    rows_of = {level: np.flatnonzero(column.codes == code) for code, level in enumerate(column.levels)}
    rest = replace(table, columns={key: value for key, value in table.columns.items() if key != name})
    return {level: rest.take(rows) for level, rows in rows_of.items()}


def gather(tables: Mapping[str, Table], roles: Roles, server: Table | None = None) -> Cohort:
    """Check the sites' tables against each other and against the roles of their columns."""
    everyone = dict(tables) | ({} if server is None else {"server": server})
    if not tables:
        raise FoedusError("an experiment needs at least one site. Got none.")
    features = features_of(everyone, roles)
    dropped = {}
    for name, table in everyone.items():
        rest = complete(table, roles, features)
        if rest.rows == 0:
            raise FoedusError(f"{table.source}: every row has a missing value, so missing = 'drop' leaves none.")
        if rest.rows < table.rows:
            dropped[name] = table.rows - rest.rows
        everyone[name] = rest
    words = frozenset(name for name in features if holds_words(name, everyone, roles))
    labels = labels_of(_values(everyone, roles.label), roles) if roles.classification else ()
    if not roles.classification:
        for table in everyone.values():
            if isinstance(column := table.columns[roles.label], Words):
                row = _first_word(column)
                raise FoedusError(
                    f"{table.place(row)}: the label {roles.label!r} is {column.levels[column.codes[row]]!r}; "
                    "this loss expects a number."
                )
    groups: tuple[str, ...] = ()
    if roles.group is not None:
        groups = groups_of(_values(everyone, roles.group), roles)
    sites = {name: everyone[name] for name in tables}
    return Cohort(sites, roles, features, words, labels, groups, everyone.get("server") if server else None, dropped)


def features_of(everyone: Mapping[str, Table], roles: Roles) -> tuple[str, ...]:
    """Return the features, which every site must have; where none are named, all columns without another role."""
    uses = [(what, name) for what, name in (("label", roles.label), ("group", roles.group)) if name]
    uses += [("cluster", roles.cluster)] if roles.cluster else []
    for what, names in (("features", roles.features or ()), ("drop", roles.drop), ("categorical", roles.categorical)):
        uses += [(what, name) for name in names]
    first = next(iter(everyone.values()))
    for table in everyone.values():
        for what, name in uses:
            if what != "drop" or table is first:
                table.column(name, f"{what!r} in [data]")
    others = {roles.label, roles.group, roles.cluster, *roles.drop}
    if roles.features is not None:
        if len(set(roles.features)) < len(roles.features):
            repeated = next(name for place, name in enumerate(roles.features) if name in roles.features[:place])
            raise FoedusError(f"features names {repeated!r} twice; name each column once.")
        if roles.label in roles.features:
            raise FoedusError(f"the label {roles.label!r} is among the features; take it out of 'features' in [data].")
        return roles.features
    features = [name for name in first.columns if name not in others]
    if not features:
        raise FoedusError(f"{first.source}: no column is left to be a feature beside {listing(others - {None})}.")
    for site, table in everyone.items():
        mine = {name for name in table.columns if name not in others}
        for name in features:
            if name not in mine:
                extra = sorted(mine - set(features))
                if twin := next((one for one in extra if visible_form(one) == visible_form(name)), None):
                    raise FoedusError(
                        f"{table.source}: its column {with_codes(twin)} looks like {with_codes(name)} of "
                        f"{first.source} and is written with other characters; rename it in the file."
                    )
                rename = f", or rename in [data.sites.{site}], as {{ {extra[0]!r} = {name!r} }}" if extra else ""
                raise FoedusError(
                    f"{table.source}: it has no column {name!r}, which {first.source} has; every site needs the same "
                    f"columns: name the common ones in features{rename}.{did_you_mean(name, mine - set(features))}"
                )
        if extra := sorted(mine - set(features)):
            raise FoedusError(
                f"{table.source}: its column {extra[0]!r} is not in {first.source}; every site needs the same columns, "
                "or name the common ones in features."
            )
    return tuple(features)


def complete(table: Table, roles: Roles, features: Sequence[str]) -> Table:
    """Return the table without the rows that the rule for missing values leaves out."""
    roles_columns = [name for name in (roles.label, roles.group, roles.cluster) if name is not None]
    keep = np.ones(table.rows, dtype=bool)
    for name in [*roles_columns, *(f for f in features if f not in roles_columns)]:
        missing = missing_in(table.columns[name])
        if not missing.any():
            continue
        if roles.missing == "drop":
            keep &= ~missing
        elif roles.missing == "error" or name in roles_columns:
            uses = {roles.label: "label", roles.group: "group", roles.cluster: "cluster"}
            what = uses.get(name, "column")
            advice = "" if name in roles_columns else ", or fill such values with missing = 'mean'"
            raise FoedusError(
                f"{table.place(int(np.argmax(missing)))}: the {what} {name!r} is missing; fill it in, or leave such "
                f"rows out with missing = 'drop' in [data]{advice}."
            )
    return table if keep.all() else table.take(np.flatnonzero(keep))


def _first_word(column: Words) -> int:
    """The first row whose cell is not a number."""
    wordy = np.array([not is_number(level) for level in column.levels] + [False])
    return int(np.argmax(wordy[column.codes]))


def holds_words(name: str, everyone: Mapping[str, Table], roles: Roles) -> bool:
    """Return whether a feature holds categories; raise where it holds numbers at some sites and words at others."""
    if name in roles.categorical:
        return True
    columns = {site: t.columns[name] for site, t in everyone.items() if not missing_in(t.columns[name]).all()}
    wordy = {site: column for site, column in columns.items() if isinstance(column, Words)}
    for site, column in wordy.items():
        numeric = np.array([is_number(level) for level in column.levels])
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(numeric))
        # a column of words may hold some numbers; where they are most, the words are probably typing errors
        if len(wordy) < len(columns) or counts[numeric].sum() > 0.5 * counts.sum():
            row, table = _first_word(column), everyone[site]
            word = column.levels[column.codes[row]]
            comma = re.fullmatch(r"[-+]?\d+,\d+", word)
            remedy = (
                "write it with a point" if comma else "if these are codes, put the column into 'categorical' in [data]"
            )
            raise FoedusError(
                f"{table.place(row)}, column {name!r}: expected a number, as in most of this column. Got {word!r} "
                f"instead; {remedy}."
            )
    return bool(wordy)


def _values(everyone: Mapping[str, Table], name: str) -> tuple[str, ...]:
    return in_order({level for table in everyone.values() for level in text_of(table.columns[name]).used().levels})


def in_order(values: set[str]) -> tuple[str, ...]:
    """Return the values in the order of numbers where all are numbers, of words otherwise."""
    if all(is_number(level) for level in values):
        return tuple(sorted(values, key=float))
    return tuple(sorted(values))


def groups_of(values: tuple[str, ...], roles: Roles) -> tuple[str, ...]:
    """Return the values of the group; raise where they are too many."""
    if len(values) > roles.max_categories:
        raise FoedusError(
            f"the group column {roles.group!r} has {len(values)} values; expected at most {roles.max_categories}."
        )
    return values


def labels_of(values: tuple[str, ...], roles: Roles) -> tuple[str, ...]:
    """Return the value of the label that counts as 0 and the one that counts as 1."""
    if len(values) == 1:
        raise FoedusError(
            f"the label {roles.label!r} is {values[0]!r} in every row at every site; expected rows of two classes."
        )
    if roles.positive is not None:
        if roles.positive not in values:
            raise FoedusError(
                f"positive = {roles.positive!r} in [data]: no row has this label; the values of {roles.label!r} are "
                f"{listing(values)}.{did_you_mean(roles.positive, values)}"
            )
        others = [value for value in values if value != roles.positive]
        return (others[0] if len(others) == 1 else f"not {roles.positive}", roles.positive)
    if set(values) not in TRUE_FALSE:
        raise FoedusError(
            f"the label {roles.label!r} has the values {listing(values)}; say in [data] which of them counts as 1, for "
            f"instance positive = {values[-1]!r}."
        )
    return values


@dataclass(frozen=True)
class Sketch:
    """What a site reveals of its table before the server asks for sums."""

    features: tuple[str, ...]
    holds: tuple[str, ...]  # of each feature: "numbers", "words", or "nothing" where all its values are missing
    labels: tuple[str, ...]  # the values of the label; none in a regression
    groups: tuple[str, ...]

    def to_json(self) -> Json:
        """Return the sketch as a JSON object."""
        return {name: list(values) for name, values in asdict(self).items()}

    @staticmethod
    def from_json(record: Json) -> "Sketch":
        """Read what `to_json` wrote; the values may come from a site that is not to be trusted, so all become text."""
        return Sketch(**{name: tuple(map(str, record[name])) for name in ("features", "holds", "labels", "groups")})


def sketch(table: Table, roles: Roles) -> tuple[Table, Sketch]:
    """Return a site's table, without the rows that the rule for missing values leaves out, and its sketch."""
    features = features_of({"here": table}, roles)
    rest = complete(table, roles, features)
    if rest.rows == 0:
        raise FoedusError(f"{table.source}: every row has a missing value, so missing = 'drop' leaves none.")
    holds = []
    for name in features:
        # a column without values fits both kinds, so another site decides what it holds
        nothing = missing_in(rest.columns[name]).all() and name not in roles.categorical
        holds.append(EMPTY if nothing else WORDS if holds_words(name, {"here": rest}, roles) else NUMBERS)

    def values(name: str | None) -> tuple[str, ...]:
        return () if name is None else text_of(rest.columns[name]).used().levels

    labels = values(roles.label) if roles.classification else ()
    return rest, Sketch(features, tuple(holds), labels, values(roles.group))


def cohort_from(sketches: Mapping[str, Sketch], roles: Roles) -> Cohort:
    """Return the cohort, without tables, of sites with these sketches; raise where their columns do not agree."""
    first, one = next(iter(sketches.items()))
    for site, other in sketches.items():
        if roles.features is not None:
            break
        for name in one.features:
            if name not in other.features:
                hint = did_you_mean(name, set(other.features) - set(one.features))
                raise FoedusError(
                    f"client {site!r}: it has no column {name!r}, which client {first!r} has; every site needs the "
                    f"same columns, or name the common ones in features.{hint}"
                )
        if extra := sorted(set(other.features) - set(one.features)):
            raise FoedusError(
                f"client {site!r}: its column {extra[0]!r} is not at client {first!r}; every site needs the same "
                "columns, or name the common ones in features."
            )
    words = set()
    for name in one.features:
        contents = {site: dict(zip(s.features, s.holds, strict=True))[name] for site, s in sketches.items()}
        wordy = [site for site, what in contents.items() if what == WORDS]
        numeric = [site for site, what in contents.items() if what == NUMBERS]
        if wordy and numeric:
            raise FoedusError(
                f"client {wordy[0]!r}: its column {name!r} holds words, but at client {numeric[0]!r} it holds numbers; "
                "if these are codes, put the column into 'categorical' in [data]."
            )
        words |= {name} if wordy else set()
    labels = (
        labels_of(in_order({v for s in sketches.values() for v in s.labels}), roles) if roles.classification else ()
    )
    groups = groups_of(in_order({v for s in sketches.values() for v in s.groups}), roles)
    return Cohort({}, roles, one.features, frozenset(words), labels, groups if roles.group is not None else ())
