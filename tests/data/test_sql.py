"""Rows that a query returns are those of a file with the same rows, and a source can only be read."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

import foedus as fd
from foedus.app.experiment import file as experiment_file
from foedus.app.experiment import folder, sources
from foedus.data import sql, tables
from foedus.data.columns import Words
from foedus.data.sites import Roles
from foedus.federation.policy import SiteFile

duckdb = pytest.importorskip("duckdb")

ROWS = [
    ("north", 61, 7.25, "yes", "2021-03-04", True),
    ("north", None, 0.1, "no", "2020-01-31", False),
    ("south", 48, 1e-17, "yes", None, True),
    ("south", 52, 3.0, "no", "1999-12-31", False),
]
COLUMNS = "site TEXT, age INTEGER, crea DOUBLE, ill TEXT, seen DATE, male BOOLEAN"
QUERY = "SELECT * FROM person ORDER BY site, crea"


@pytest.fixture(params=["duckdb", "sqlite"])
def source(request, tmp_path: Path) -> str:
    """A database with the rows of two sites, in a folder of its own."""
    path = tmp_path / "clinic.db"
    connection = duckdb.connect(str(path)) if request.param == "duckdb" else sqlite3.connect(path)
    connection.execute(f"CREATE TABLE person ({COLUMNS})")
    connection.executemany("INSERT INTO person VALUES (?, ?, ?, ?, ?, ?)", ROWS)
    connection.commit()
    connection.close()
    return f"{request.param}:///clinic.db"


def experiment(tmp_path: Path, source: str, query: str = QUERY) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(f'[data]\nsource = "{source}"\nquery = "{query}"\nsite = "site"\nlabel = "ill"\npositive = "yes"\n')
    return path


def test_the_columns_are_those_of_a_file_with_the_same_rows(tmp_path, source):
    def cell(value: object) -> str:
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    lines = [",".join(map(cell, row)) for row in sorted(ROWS, key=lambda row: (row[0], row[2]))]
    (tmp_path / "same.csv").write_text("site,age,crea,ill,seen,male\n" + "\n".join(lines) + "\n")
    same, own = tables.read(tmp_path / "same.csv"), sql.read(source, QUERY, tmp_path)
    assert list(own.columns) == list(same.columns)
    assert own.dates == same.dates == {"seen"}
    for name in ("age", "crea", "seen"):
        np.testing.assert_array_equal(own.columns[name], same.columns[name])
    ill = own.columns["ill"]
    assert isinstance(ill, Words)
    assert [ill.levels[code] for code in ill.codes] == ["no", "yes", "yes", "no"]


def test_an_experiment_reads_its_sites_from_a_query_and_its_digest_follows_the_rows(tmp_path, source):
    loaded = experiment_file.load(experiment(tmp_path, source))
    settings = loaded.cases[0].settings
    parts = sources.tables_of(settings, loaded.folder)
    assert {site: table.rows for site, table in parts.items()} == {"north": 2, "south": 2}
    before = folder.digest_of(settings, loaded.folder)
    assert before == folder.digest_of(settings, loaded.folder)
    path = tmp_path / "clinic.db"
    connection = duckdb.connect(str(path)) if source.startswith("duckdb") else sqlite3.connect(path)
    connection.execute("UPDATE person SET age = 62 WHERE age = 61")
    connection.commit()
    connection.close()
    assert folder.digest_of(settings, loaded.folder) != before


def test_a_site_file_may_name_a_database_and_a_query(tmp_path, source):
    name = "clinic.duckdb" if source.startswith("duckdb") else "clinic.sqlite"
    (tmp_path / "clinic.db").rename(tmp_path / name)
    (tmp_path / "site.toml").write_text(f'[data]\nfile = "{name}"\nquery = "{QUERY}"\nlabels = ["ill"]\n')
    data = SiteFile.read(tmp_path / "site.toml").data
    assert data is not None
    table = data.table(Roles("ill", "yes"))
    assert table.rows == 4
    assert data.digest()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM person",
        "DROP TABLE person",
        "CREATE TABLE other (x INTEGER)",
        "ATTACH 'stolen.db' AS stolen",
        "COPY person TO 'stolen.db'",
        "SELECT * FROM read_csv('secret.csv')",
        "SELECT * FROM nobody",
    ],
)
def test_a_query_changes_nothing_and_reads_nothing_else(tmp_path, source, statement, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    content = (tmp_path / "clinic.db").read_bytes()
    with pytest.raises(fd.FoedusError, match=r"^\w+:///clinic.db: the query cannot be answered: "):
        sql.read(source, statement, tmp_path)
    assert (tmp_path / "clinic.db").read_bytes() == content
    assert not (tmp_path / "stolen.db").exists()


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("SELECT * FROM person WHERE age > 200", "the query returns no rows"),
        ("SELECT age FROM person", "the query returns 1 column"),
        ("SELECT age, crea AS age FROM person", "two columns called 'age'"),
    ],
)
def test_a_result_that_is_no_table_of_rows_is_told(tmp_path, source, query, sentence):
    with pytest.raises(fd.FoedusError, match=sentence):
        sql.read(source, query, tmp_path)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ('source = "duckdb:///a.db"', "go together"),
        ('query = "SELECT 1"', "go together"),
        ('source = "mysql://a/b"\nquery = "SELECT 1"', "must be 'duckdb:///FILE'"),
        ('source = "sqlite://a.db"\nquery = "SELECT 1"', "needs three slashes, as in 'sqlite:///a.db'"),
        ('source = "postgresql://me:secret@host/db"\nquery = "SELECT 1"', "leave the password out"),
        ('source = "sqlite:///a.db"\nquery = "SELECT 1"\nfile = "b.csv"', "it has file and source"),
    ],
)
def test_wrong_sources_are_told_in_a_sentence_without_a_password(tmp_path, lines, sentence):
    (tmp_path / "e.toml").write_text(f'[data]\n{lines}\nlabel = "ill"\nsite = "site"\n')
    with pytest.raises(fd.FoedusError, match=sentence) as error:
        experiment_file.load(tmp_path / "e.toml")
    assert "secret" not in str(error.value)


def test_a_query_in_a_site_file_goes_with_a_database(tmp_path):
    (tmp_path / "site.toml").write_text('[data]\nfile = "a.csv"\nquery = "SELECT 1"\nlabels = ["ill"]\n')
    data = SiteFile.read(tmp_path / "site.toml").data
    assert data is not None
    with pytest.raises(fd.FoedusError, match="a query goes with a file that ends in"):
        data.table(Roles("ill", "yes"))


def test_a_missing_database_is_told(tmp_path):
    with pytest.raises(fd.FoedusError, match="there is no file"):
        sql.read("sqlite:///none.db", QUERY, tmp_path)
