"""The site file says which data a site brings and what it allows. It stays at the site, and nobody else reads it."""

import hashlib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.data import sql, tables
from foedus.data.columns import Column
from foedus.data.remedies import KEYS, Remedies, remedies_of
from foedus.data.sites import Roles
from foedus.data.tables import Table

if TYPE_CHECKING:  # JAX is no part of a site's own process, which reads this file as its jobs do
    from foedus.protocol.algorithm import Algorithm

SITE_FILE = "foedus.toml"


class Refusal(Exception):
    """A site refuses: a code, and a sentence that holds nothing of its data."""

    def __init__(self, code: str, sentence: str):
        super().__init__(sentence)
        self.code, self.sentence = code, sentence


@dataclass(frozen=True)
class Policy:
    """What a site allows. Every limit is checked at the site itself, and most of them before its data are read.

    The limits on privacy are totals for replacing one row, at `max_delta`, by the tightest composition that is proved.
    """

    algorithms: tuple[str, ...] = ("*",)  # by name; "*" allows all
    modules: tuple[str, ...] = ()  # modules beside foedus whose functions may run on the data
    min_rows: int = 1  # a site with fewer rows than this stays out
    min_subset: int = 20  # no figure about fewer rows than this leaves the site, unless noise covers it
    min_sites: int = 2  # a run over fewer sites than this is refused
    privacy: bool = False  # whether everything that leaves must be covered by noise
    max_epsilon: float = math.inf  # the most privacy loss in one run
    max_epsilon_total: float = math.inf  # the most in all runs together, whatever a server calls them
    max_delta: float = 1e-5  # the delta at which the totals are computed; noise with a larger one is refused
    max_message: int = 2**30  # bytes in one reply
    max_words: int = 50  # different words of one column that are told to the server
    ranges: bool = False  # whether the least and the greatest value of a column, each one row's, may be told
    evaluate: bool = True  # whether sums and histograms of rows that are held out of training may be told
    secure: bool = False  # whether what has no noise may leave only as masked sums
    max_answers: float = math.inf  # numbers that may leave in a run without noise, as a share of those in the rows
    max_leverage: float = 1.0  # of a row in the sums of a run without noise
    secure_min: int = 3  # the fewest other sites in a masked sum
    verify: bool = True  # whether masked sums without noise leave in checked runs alone
    approve: str = "auto"  # "ask": an experiment waits until a person at the site has approved it

    @property
    def limits_privacy(self) -> bool:
        """Whether only what noise covers may leave the site."""
        return self.privacy or self.max_epsilon < math.inf or self.max_epsilon_total < math.inf

    def refuse(self, algorithm: "Algorithm", sites: int) -> str | None:
        """Return the sentence with which this policy forbids an algorithm, or None; it depends on no data."""
        from foedus.privacy.releasing import sound_noise
        from foedus.protocol.algorithm import name_of

        if "*" not in self.algorithms and name_of(algorithm) not in self.algorithms:
            return f"its policy allows {_list(self.algorithms)}, not {name_of(algorithm)}"
        if sites < self.min_sites:
            return f"its policy asks for runs over at least {self.min_sites} sites"
        batch = getattr(algorithm, "batch", None)
        if isinstance(batch, int) and batch < self.min_subset:
            return f"its policy lets nothing about fewer than {self.min_subset} rows leave, and a batch has {batch}"
        noise = sound_noise(algorithm)
        if noise is None:
            no = f"its policy asks for privacy, and {name_of(algorithm)} adds no noise with a guarantee here"
            return no if self.limits_privacy else None
        if noise.sampler != "opendp":
            return "noise at a real site must be drawn by OpenDP (sampler = 'opendp'), not from a seed"
        if self.limits_privacy and noise.delta > self.max_delta:
            return f"its policy allows delta {self.max_delta:g}, and the noise has {noise.delta:g}"
        return None


def _list(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else "no algorithm"


@dataclass(frozen=True)
class Source:
    """Where a site's data are: a table (.csv, .tsv, .parquet) and its columns, or an .npz file with arrays by name.

    With a `query`, in SQL, the file is a DuckDB or SQLite database, and the table is what the query returns.
    """

    file: Path
    query: str | None = None
    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    drop: tuple[str, ...] = ()
    rename: dict[str, str] = field(default_factory=dict)
    map: dict[str, object] = field(default_factory=dict)  # by column, the value in the file = the value here
    scale: dict[str, object] = field(default_factory=dict)  # by column, the factor to multiply by
    x: tuple[str, ...] = ()  # the columns that may be features; all others when left out
    y: str | None = None  # the column that is the label, where it has another name than in the experiment
    group: str | None = None
    labels: tuple[str, ...] = ()  # the columns of this file that an experiment may use as its label
    groups: tuple[str, ...] = ()  # the columns of this file that an experiment may use as its group
    columns: dict[str, str] = field(default_factory=dict)  # the experiment's name of a column = its name in this file

    def remedies(self) -> Remedies:
        """Return what is done about the file before its columns get their roles."""
        return remedies_of({key: getattr(self, key) for key in KEYS if getattr(self, key) is not None}, "[data]")

    def digest(self) -> str:
        """Return a digest of the data, by which a change after a plan was accepted is told."""
        try:
            with self.file.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of an .npz file by name."""
        if not self.file.is_file():
            raise FoedusError(f"the data file {self.file} is missing.")
        if self.file.suffix != ".npz":
            raise FoedusError(
                f"{self.file} is a table, and this run brings no rules to prepare it; "
                "submit it as an experiment file, or give arrays in an .npz file."
            )
        try:
            with np.load(self.file, allow_pickle=False) as file:
                return {name: np.asarray(file[name]) for name in file.files}
        except (OSError, ValueError, EOFError, KeyError) as error:
            raise FoedusError(f"the data file {self.file} cannot be read as .npz ({error}).") from None

    def table(self, roles: Roles) -> Table:
        """Return the table with the experiment's names of the columns; where `x` names some, the others stay out."""
        remedies = self.remedies()
        if self.query is None:
            table = tables.read(self.file, remedies.form)
        else:
            table = sql.read(sql.source_of(self.file, "[data] query"), self.query, Path())
        table = remedies.apply(table, "[data]")
        names = {own: name for name, own in self.columns.items()}
        names |= {} if self.y is None else {self.y: roles.label}
        names |= {} if self.group is None or roles.group is None else {self.group: roles.group}
        for own in (*names, *self.x, *self.labels, *self.groups):
            table.column(own, "the site file")
        self._check_role(roles.label, "label", (*self.labels, *((self.y,) if self.y else ())), names)
        if roles.group is not None:
            self._check_role(roles.group, "group", (*self.groups, *((self.group,) if self.group else ())), names)
        visible = {roles.label, roles.group, *(self.x and (names.get(own, own) for own in self.x))}
        columns: dict[str, Column] = {}
        for own, column in table.columns.items():
            name = names.get(own, own)
            if self.x and name not in visible:
                continue
            if name in columns:
                raise FoedusError(f"{self.file}: two columns would be called {name!r}.")
            columns[name] = column
        return replace(table, columns=columns)

    def _check_role(self, name: str, role: str, columns: tuple[str, ...], names: Mapping[str, str]) -> None:
        """Refuse a label or group that the site file does not list: its values would be told to the server."""
        if name not in {names.get(own, own) for own in columns}:
            raise Refusal(
                "policy", f"its site file does not list {name!r} among the columns that may be the {role} ({role}s)"
            )


@dataclass(frozen=True)
class SiteFile:
    """A site file, read and checked."""

    data: Source | None
    policy: Policy

    @staticmethod
    def read(path: Path) -> "SiteFile":
        """Read the site file; a wrong key or value raises a sentence that names it."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FoedusError(f"the site file {path} is missing.") from None
        except (OSError, ValueError) as error:
            raise FoedusError(f"the site file {path} cannot be read: {error}.") from None
        for part in content:
            if part not in ("data", "policy"):
                raise FoedusError(f"{path}: [{part}] is unknown; expected [data] and [policy].")
        data = content.get("data")
        policy = Policy(**_fields(path, "policy", Policy, content.get("policy", {})))
        if policy.approve not in ("auto", "ask"):
            raise FoedusError(f"{path}: the key 'approve' of [policy] must be 'auto' or 'ask'. Got {policy.approve!r}.")
        source = None
        if data is not None:
            fields_of_data = _fields(path, "data", Source, data)
            if "file" not in fields_of_data:
                raise FoedusError(f"{path}: [data] needs the key file.")
            fields_of_data["file"] = (path.parent / fields_of_data["file"]).absolute()
            source = Source(**fields_of_data)
            try:
                source.remedies()
            except FoedusError as error:
                raise FoedusError(f"{path}: {error}") from None
        return SiteFile(source, policy)


def _kind(annotation: object) -> str:
    """The type of a field in words: dict[str, str] and not only dict."""
    return (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )


def _fields(path: Path, part: str, cls: type, table: Json) -> Json:
    kinds = {f.name: _kind(f.type) for f in fields(cls)}
    values: Json = {}
    for key, value in table.items():
        if (part, key) == ("policy", "own_keys"):
            continue  # of version 0.1: noise now always comes from the operating system, so there is nothing to choose
        if key not in kinds:
            raise FoedusError(f"{path}: [{part}] has no key {key!r}.{did_you_mean(key, kinds)}")
        kind = kinds[key]
        if kind.startswith("tuple"):
            fits, words = isinstance(value, list) and all(isinstance(v, str) for v in value), "a list of names"
            value = tuple(value) if fits else value
        elif kind.startswith("dict[str, object]"):  # `remedies_of` checks what is in it
            fits, words = isinstance(value, dict), "a table"
        elif kind.startswith("dict"):
            fits = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
            words = "a table of name = name"
        elif kind == "bool":
            fits, words = isinstance(value, bool), "true or false"
        elif kind == "int":
            fits, words = isinstance(value, int) and not isinstance(value, bool) and value >= 0, "a whole number >= 0"
        elif kind == "float":
            fits, words = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0, "a number >= 0"
        else:
            fits, words = isinstance(value, str), "text in quotes"
        if not fits:
            raise FoedusError(f"{path}: the key {key!r} of [{part}] must be {words}. Got {value!r} instead.")
        values[key] = value
    return values
