"""Remedies for one site's table, stated beside the experiment: the file itself stays as it is.

They are applied in this order: columns are left out (`drop`), renamed (`rename`), their values replaced (`map`) and
multiplied (`scale`). Names after `rename` are the new ones. A run keeps them with its settings, so that later rows of a
site can be brought into the same form: such rows need not hold every column and every value that a remedy names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.settings import check
from foedus.data.columns import Column, Words, is_number, listing, number_text, text_of
from foedus.data.formats import DECIMALS, SEPARATORS, Format, check_encoding
from foedus.data.tables import Table

KEYS = ("separator", "encoding", "decimal", "drop", "rename", "map", "scale")
FORMAT_KEYS = KEYS[:3]


@dataclass(frozen=True)
class Remedies:
    """What is done about one site's file before its columns get their roles.

    Args:
        form: how the file is written, where it is not recognised.
        drop: columns to leave out.
        rename: the name in the file = the name here.
        map: by column, the value in the file = the value here; an empty text is a missing value.
        scale: by column of numbers, the factor to multiply by.
    """

    form: Format = field(default_factory=Format)
    drop: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    map: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The remedies in the words of an experiment file; empty where there are none."""
        parts = [f"{key} {', '.join(map(str, value))}" for key in ("drop", "map") if (value := getattr(self, key))]
        parts += [f"{name} is called {new}" for name, new in self.rename.items()]
        parts += [f"scale.{name} = {factor:g}" for name, factor in self.scale.items()]
        parts += [f"{key} = {value!r}" for key, value in vars(self.form).items() if value is not None]
        return ", ".join(parts)

    def apply(self, table: Table, place: str, *, later: bool = False) -> Table:
        """Return the table after the remedies; raise where one names a column or a value that is not there.

        `later`: these are rows of after the training, where what a remedy names may be missing: few rows do not hold
        every value, and rows to predict have no label.
        """

        def has(name: str, remedy: str) -> bool:
            if not later:
                _find(columns, name, table, f"{place} {remedy}")
            return name in columns

        columns = dict(table.columns)
        for name in self.drop:
            if has(name, "drop"):
                del columns[name]
        for name in self.rename:
            has(name, "rename")
        columns = _renamed(columns, self.rename, f"{place} rename")
        for name, values in self.map.items():
            if has(name, "map"):
                columns[name] = _mapped(columns[name], values, f"{table.source}: {place} map.{name}", later)
        for name, factor in self.scale.items():
            if not has(name, "scale"):
                continue
            column = columns[name]
            if isinstance(column, Words):
                raise FoedusError(
                    f"{table.source}: {place} scale: the column {name!r} holds the word {column.levels[0]!r}; expected "
                    "numbers."
                )
            columns[name] = factor * column
        return replace(table, columns=columns)


def _find(columns: Mapping[str, Column], name: str, table: Table, place: str) -> None:
    if name not in columns:
        raise FoedusError(
            f"{table.source}: there is no column {name!r}, which {place} names; its columns are "
            f"{listing(columns)}.{did_you_mean(name, columns)}"
        )


def _renamed(columns: Mapping[str, Column], names: Mapping[str, str], place: str) -> dict[str, Column]:
    result: dict[str, Column] = {}
    for old, column in columns.items():
        name = names.get(old, old)
        if name in result:
            raise FoedusError(f"{place}: two columns would be called {name!r}.")
        result[name] = column
    return result


def _mapped(column: Column, values: Mapping[str, str], place: str, later: bool) -> Column:
    """The column with values replaced; it holds numbers afterwards if every value is one."""
    words = text_of(column)
    for old in values:
        if old not in words.levels and not later:
            hint = did_you_mean(old, words.levels)
            raise FoedusError(f"{place}: no row has {old!r}; its values are {listing(words.levels, 6)}.{hint}")
    levels = [values.get(level, level) for level in words.levels]
    if all(level == "" or is_number(level) for level in levels):
        return np.array([*(float(level) if level else np.nan for level in levels), np.nan])[words.codes]
    new = tuple(sorted({level for level in levels if level}))
    places = np.array([*(new.index(level) if level else -1 for level in levels), -1], dtype=np.int64)
    return Words(places[words.codes], new)


def remedies_of(request: object, place: str) -> Remedies:
    """Read the remedies of one site from a table of TOML; a wrong key or value raises a sentence that names it."""
    if not isinstance(request, Mapping):
        raise FoedusError(f"{place} must be a section with the keys {', '.join(KEYS)}. Got {request!r} instead.")
    for key in request:
        if key not in KEYS:
            raise FoedusError(
                f"{place} has no key {key!r}; its keys are {', '.join(KEYS)}." + did_you_mean(str(key), KEYS)
            )
    drop = request.get("drop", [])
    if not isinstance(drop, list | tuple) or not all(isinstance(name, str) for name in drop):
        raise FoedusError(f"{place} drop must be a list of texts. Got {drop!r} instead.")
    rename: dict[str, str] = {}
    for old, new in _table(request, "rename", place).items():
        if not isinstance(new, str) or not new:
            raise FoedusError(f"{place} rename: the new name of {old!r} must be text in quotes. Got {new!r} instead.")
        rename[old] = new
    maps = {}
    for column, values in _table(request, "map", place).items():
        if not isinstance(values, Mapping):
            raise FoedusError(f"{place} map.{column} must be a table of old = new. Got {values!r} instead.")
        maps[column] = {old: _value(new, f"{place} map.{column}.{old}") for old, new in values.items()}
    scale: dict[str, float] = {}
    for column, factor in _table(request, "scale", place).items():
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not isfinite(factor) or factor == 0:
            raise FoedusError(f"{place} scale: the factor of {column!r} must be a number other than 0. Got {factor!r}.")
        scale[column] = float(factor)
    return Remedies(format_of(request, place), tuple(drop), rename, maps, scale)


def format_of(request: Mapping[str, object], place: str) -> Format:
    """Read separator, encoding and decimal sign; None for those that are not given."""
    for key, choices in (("separator", tuple(SEPARATORS)), ("decimal", DECIMALS)):
        if key in request:
            check(f"{place} {key}", request[key], choices=choices)
    encoding = request.get("encoding")
    if encoding is not None:
        if not isinstance(encoding, str):
            raise FoedusError(f"{place} encoding must be text in quotes. Got {encoding!r} instead.")
        check_encoding(encoding, place)
    return Format(*(None if request.get(key) is None else str(request[key]) for key in FORMAT_KEYS))


def _table(request: Mapping[str, object], key: str, place: str) -> Mapping[str, object]:
    value = request.get(key, {})
    if not isinstance(value, Mapping):
        raise FoedusError(f"{place} {key} must be a table. Got {value!r} instead.")
    return value


def _value(new: object, place: str) -> str:
    """A value as a CSV file says it."""
    if isinstance(new, bool):
        return str(new).lower()
    if isinstance(new, int | float):
        return number_text(new)
    if not isinstance(new, str):
        raise FoedusError(f"{place} must be text or a number. Got {new!r} instead.")
    return new.strip()
