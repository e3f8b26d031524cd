"""Tables that a query returns: from a DuckDB or SQLite file, or from a PostgreSQL server; read and never written.

`duckdb:///clinic.duckdb` and `sqlite:///clinic.db` name a file beside the experiment file, with four slashes one from
the root of the disk; `postgresql://user@host/database` a server, whose password PGPASSWORD or ~/.pgpass holds.
"""

import hashlib
import importlib.util
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from foedus.base.errors import FoedusError
from foedus.data.columns import arrow_texts, from_arrow, number_text
from foedus.data.tables import Table, checked_table

KINDS = {"duckdb": "duckdb", "sqlite": "sqlite3", "postgresql": "psycopg"}  # the package that each kind needs
ENDINGS = {".duckdb": "duckdb", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "sqlite"}

Rows = tuple[list[str], list[Sequence[object]]]


def check_source(source: str, place: str) -> None:
    """Raise where a source is none that can be read."""
    kind, rest = source.partition("://")[::2]
    if kind not in KINDS or not rest:
        raise FoedusError(
            f"{place} must be 'duckdb:///FILE', 'sqlite:///FILE' or 'postgresql://HOST/DATABASE'. Got "
            f"{without_password(source)!r} instead."
        )
    if kind == "postgresql" and urlsplit(source).password is not None:
        raise FoedusError(
            f"{place}: leave the password out, for settings are kept; put it into PGPASSWORD or ~/.pgpass."
        )
    if kind != "postgresql" and not rest.startswith("/"):
        raise FoedusError(f"{place}: a file needs three slashes, as in '{kind}:///{rest}'.")


def without_password(source: str) -> str:
    """Return a source as a message may show it."""
    head, at, tail = source.rpartition("@")
    return f"…@{tail}" if at and ":" in head.partition("://")[2] else source


def path_of(source: str, folder: Path) -> Path | None:
    """Return the file of a source; None for a server."""
    kind, rest = source.partition("://")[::2]
    return None if kind == "postgresql" else folder / rest[1:]


def source_of(file: Path, place: str) -> str:
    """Return the source that a database file is."""
    if file.suffix.lower() not in ENDINGS:
        raise FoedusError(
            f"{place}: a query goes with a file that ends in {', '.join(ENDINGS)}. Got {file.name!r} instead."
        )
    return f"{ENDINGS[file.suffix.lower()]}:///{file.absolute()}"


def read(source: str, query: str, folder: Path) -> Table:
    """Return what a query returns, as a table.

    Args:
        source: the database.
        query: one SELECT; with an ORDER BY the rows have the same order each time.
        folder: which the path of a file is relative to.
    """
    names, rows = _rows(source, query, folder)
    if len(names) < 2:
        raise FoedusError(f"{source}: the query returns {len(names)} column; expected a label and features.")
    for name in names:
        if names.count(name) > 1:
            raise FoedusError(f"{source}: the query returns two columns called {name!r}; name one of them with AS.")
    cells: Iterable[Sequence[object]] = zip(*rows, strict=True) if rows else ([] for _ in names)
    columns = {name: from_arrow(arrow_texts(map(_text, own))) for name, own in zip(names, cells, strict=True)}
    return checked_table(source, columns, "the query returns no rows; expected one example a row")


def digest_of(source: str, query: str, folder: Path) -> bytes:
    """Return a digest of what a query returns now."""
    total = hashlib.sha256()
    names, rows = _rows(source, query, folder)
    for row in (names, *rows):
        total.update(repr([_text(cell) for cell in row]).encode())
    return total.digest()


def _rows(source: str, query: str, folder: Path) -> Rows:
    check_source(source, "the source of a query")
    kind, path = source.partition("://")[0], path_of(source, folder)
    if importlib.util.find_spec(KINDS[kind]) is None:
        extra = "'foedus[sql]'" if kind == "duckdb" else KINDS[kind]
        raise FoedusError(f"{source}: reading it needs {KINDS[kind]}; install it with: pip install {extra}.")
    if path is not None and not path.is_file():
        raise FoedusError(f"{source}: there is no file {path}.")
    module = importlib.import_module(KINDS[kind])
    try:
        with closing(_connection(kind, source, path)) as connection:
            cursor: Any = connection.execute(query)
            if not cursor.description:
                raise FoedusError(f"{source}: the query returns no table; expected one SELECT.")
            return [str(column[0]) for column in cursor.description], cursor.fetchall()
    except (module.Error, sqlite3.Warning) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0].removesuffix(".")
        raise FoedusError(f"{source}: the query cannot be answered: {why}.") from None


def _connection(kind: str, source: str, path: Path | None) -> Any:
    """A connection that reads this database alone, and writes nothing."""
    if kind == "sqlite":
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        return connection
    if kind == "duckdb":
        duckdb = importlib.import_module("duckdb")
        connection = duckdb.connect(str(path), read_only=True)
        connection.execute("SET enable_external_access = false")  # no other file, and no network
        connection.execute("SET lock_configuration = true")
        return connection
    connection = importlib.import_module("psycopg").connect(source)
    connection.read_only = True
    return connection


def _text(cell: object) -> str:
    """A cell as a text file says it."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, int):
        return str(cell)
    if isinstance(cell, float):
        return "" if cell != cell else number_text(cell) if abs(cell) != float("inf") else repr(cell)
    return "" if cell is None else str(cell)
