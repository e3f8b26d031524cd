"""The experiment file: its keys, what each may hold, and a sentence for everything else.

A list where one value is expected makes one run for each of its values; several such lists make all combinations.
"""

import copy
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from foedus.app.experiment import catalogue
from foedus.app.experiment.sweep import RunCase, Settings, Several, expand
from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.base.settings import check
from foedus.data.columns import number_text
from foedus.data.formats import DECIMALS, SEPARATORS
from foedus.data.loaders import OPENML, SETS
from foedus.data.partition import PARTITIONERS
from foedus.data.preprocess import SCALES
from foedus.data.sites import RULES
from foedus.data.sql import check_source
from foedus.statistics.sandwich import ERRORS


@dataclass(frozen=True)
class Key:
    """One key: the kind of its value, what it is for, and whether a list of values makes several runs."""

    kind: str  # one of KINDS
    doc: str
    default: object = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    sweeps: bool = False

    def check(self, value: object, place: str) -> None:
        """Raise where a value of this kind is not one of the choices, or not within the limits."""
        if self.choices or any(limit is not None for limit in (self.least, self.most, self.above, self.below)):
            check(
                place, value, ge=self.least, le=self.most, gt=self.above, lt=self.below, choices=self.choices,
                whole=self.kind == "whole", finite=True,
            )  # fmt: skip


KINDS = {
    "text": "text in quotes",
    "number": "a number",
    "whole": "a whole number",
    "flag": "true or false",
    "texts": "a list of texts",
    "value": "text or a number",
    "table": "a table",
    "files": "a file name, a list of them, or a table of site = file",
    "offer": "a name, or a table with a name and settings",
    "weights": "'sites', 'rows', or a table of site = number",
}

TOP = {
    "name": Key("text", "what the run is called; the file's name when left out"),
    "seed": Key("whole", "keys every random draw", 0, least=0, most=2**63 - 1, sweeps=True),
    "out": Key("text", "the folder for the run directory; runs/<name> when left out"),
}
DATA = {
    "files": Key("files", "one file a site: a pattern, a list, or a table of site = file"),
    "file": Key("text", "one file for all sites; 'site' names the column that tells them apart"),
    "source": Key("text", "a database with the rows of all sites: duckdb:///FILE, sqlite:///FILE or postgresql://…"),
    "query": Key("text", "what is read from it, in SQL; ORDER BY keeps the order of the rows"),
    "site": Key("text", "the column with the site of each row"),
    "set": Key("text", "a data set by name, dealt out to sites by [partition]"),
    "separator": Key("text", "what stands between the cells of a text file", None, tuple(SEPARATORS)),
    "encoding": Key("text", "the encoding of a text file, as 'utf-8' or 'latin-1'"),
    "decimal": Key("text", "the decimal sign of a text file", None, DECIMALS),
    "sites": Key("table", "remedies for single sites: [data.sites.NAME]"),
    "server": Key("text", "a file that the server itself holds, for constraints of global scope"),
    "label": Key("text", "the column to predict"),
    "positive": Key("value", "the label that counts as 1"),
    "group": Key("text", "the column with the group of each row, for constraints between groups"),
    "features": Key("texts", "the columns to predict from; all others when left out"),
    "drop": Key("texts", "columns to leave out", ()),
    "categorical": Key("texts", "columns of numbers that are codes, not quantities", ()),
    "missing": Key("text", "'mean' fills in, 'drop' leaves rows out, 'error' refuses", "mean", RULES),
    "max_categories": Key("whole", "the most different words in a column", 50, least=2),
}
PARTITION = {
    "method": Key("text", "how rows are dealt out to sites", "iid", tuple(PARTITIONERS)),
    "num_partitions": Key("whole", "how many sites", None, least=1, sweeps=True),
    "alpha": Key("number", "for dirichlet and power_law", None, sweeps=True),
    "num_shards_per_partition": Key("whole", "for shards", None, least=1, sweeps=True),
    "min_partition_size": Key("whole", "for dirichlet", None, least=1, sweeps=True),
    "partition_by": Key("text", "the column to deal out by; the label when left out"),
    "seed": Key("whole", "keys the draw; that of the experiment when left out", None, least=0, sweeps=True),
}
PREPROCESS = {
    "scale": Key("text", "of number columns", "standard", SCALES),
    "intercept": Key("flag", "whether the model has a constant", True),
    "bounds": Key("table", "columns whose range is stated: column = [low, high]; no site is asked about them"),
    "epsilon": Key(
        "number", "standardise columns of stated bounds by noisy sums that spend this much", above=0, sweeps=True
    ),
    "categories": Key("table", "columns whose words are stated: column = [words]; no site is asked about them"),
}
PROBLEM = {
    "loss": Key("offer", "the loss of one row", {"name": "logistic"}),
    "formula": Key("text", "the label and the model's columns, as 'y ~ age*sex'; every column when left out"),
    "where": Key("text", "the rows that count in the objective, as 'label 0' or 'group F'; all when left out"),
    "penalty": Key("offer", "a smooth penalty on the model, the intercept excepted"),
    "regularizer": Key("offer", "a regulariser of the model, the intercept excepted"),
    "weights": Key("weights", "how the sites weigh: all the same, or by their rows as in a pooled fit", "sites"),
}
PARTICIPATION = {
    "fraction": Key("number", "the share of the sites asked in each round", 1.0, sweeps=True),
    "dropout": Key("number", "the share of replies that get lost", 0.0, sweeps=True),
    "every": Key("whole", "ask every site at least once in so many rounds", None, least=1, sweeps=True),
}
EVALUATE = {
    "holdout": Key(
        "number",
        "the share of each site's rows that is kept out of training to evaluate the model on",
        above=0,
        below=1,
    ),
    "epsilon": Key("number", "under [privacy]: what the figures spend of a held-out row; all when left out"),
    "delta": Key("number", "the delta that goes with it; that of [privacy] when left out"),
}
RUN = {
    "max_rounds": Key("whole", "the most rounds; the algorithm's own limit when left out", None, least=1, sweeps=True),
    "runtime": Key(
        "offer", "where the rounds are played: in this process, or by sites of their own", {"name": "simulate"}
    ),
    "secure": Key("flag", "whether the server sees sums over sites alone (masked sums)", False),
}
SUMMARY = {
    "errors": Key(
        "text", "how standard errors are computed: 'hessian' if the model is right, the others if not", None, ERRORS
    ),
    "cluster": Key("text", "the column that says which rows of a site belong together, for errors = 'cluster'"),
}
SECTIONS: dict[str, dict[str, Key]] = {
    "data": DATA,
    "partition": PARTITION,
    "preprocess": PREPROCESS,
    "problem": PROBLEM,
    "participation": PARTICIPATION,
    "run": RUN,
    "evaluate": EVALUATE,
    "summary": SUMMARY,
}
OPEN = ("algorithm", "constraints", "privacy")  # sections whose keys come from the package


@dataclass(frozen=True)
class Experiment:
    """A file that has been read and checked, and the runs that it asks for."""

    path: Path
    name: str
    out: Path
    cases: tuple[RunCase, ...]

    @property
    def folder(self) -> Path:
        """The folder of the file, to which the file names in it are relative."""
        return self.path.parent


def load(path: Path, *, elsewhere: bool = False, text: str | None = None) -> Experiment:
    """Read an experiment file and check everything that can be checked without the data.

    `elsewhere`: the sites bring their own rows, and the file need not say where they are. `text`: what to read in the
    place of the file's own content.
    """
    try:
        text = path.read_text(encoding="utf-8") if text is None else text
    except FileNotFoundError:
        beside = [entry.name for entry in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, beside) or " 'foedus init' writes one to start from."
        raise FoedusError(f"{path}: there is no such file.{hint}") from None
    except OSError as error:
        raise FoedusError(f"cannot read {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise FoedusError(f"cannot read {path}: expected text in UTF-8 ({error.reason}).") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FoedusError(f"{path} is not valid TOML: {error}.") from None
    if (folder := str(path.parent.absolute())) not in sys.path:
        sys.path.append(folder)  # an algorithm of one's own may be in a module beside the file
    try:
        settings = _read_settings(raw, elsewhere)
        name = settings["name"] or path.stem
        cases = expand(settings)
        for case in cases:
            _check_case(case.settings)
    except FoedusError as error:
        raise FoedusError(f"{path}: {error}") from None
    out = Path(settings["out"]) if settings["out"] else Path("runs") / name
    return Experiment(path, name, out, cases)


def with_algorithms(experiment: Experiment, names: list[str]) -> Experiment:
    """Return the experiment with each of these algorithms, with default settings, in place of its own."""
    offers = [catalogue.find_algorithm(name, "--algorithms") for name in names]
    if not offers:
        raise FoedusError(f"--algorithms names none; there are {', '.join(sorted(catalogue.algorithms()))}.")
    cases: dict[str, RunCase] = {}
    for case in experiment.cases:
        own = case.settings["algorithm"]
        for offer in offers:
            # An algorithm that the file names itself keeps its settings there, and where several cases of the file
            # come to the same name, the one with these settings is taken.
            request = own if own["name"] == offer.name else {"name": offer.name}
            candidate = RunCase({**case.settings, "algorithm": request}, (offer.name,), case.others)
            if candidate.name not in cases or own["name"] == offer.name:
                cases[candidate.name] = candidate
    for case in cases.values():
        _check_case(case.settings)
    return replace(experiment, cases=tuple(cases.values()))


def _read_settings(raw: Json, elsewhere: bool) -> Settings:
    """The settings with their defaults; a list of values that makes several runs is a `Several`."""
    names = [*TOP, *SECTIONS, *OPEN]
    for key in raw:
        if key not in names:
            inside = next((s for s, keys in SECTIONS.items() if key in keys), None)
            hint = f" It belongs into [{inside}]." if inside else did_you_mean(key, names)
            raise FoedusError(
                f"there is no key or section {key!r}; the sections are {', '.join([*SECTIONS, *OPEN])}.{hint}"
            )
    settings = _read_keys({k: v for k, v in raw.items() if k in TOP}, TOP, "")
    _check_name(settings["name"])
    for section, keys in SECTIONS.items():
        section_keys = raw.get(section, {})
        if not isinstance(section_keys, dict):
            raise FoedusError(f"{section!r} must be a section: write [{section}] on a line of its own.")
        settings[section] = _read_keys(section_keys, keys, f"[{section}]")
    if "data" not in raw:
        raise FoedusError("the section [data] is missing; it says where the sites' rows are.")
    settings["has_partition"] = "partition" in raw
    if "summary" in raw and settings["summary"]["errors"] is None:
        settings["summary"]["errors"] = "hessian" if settings["summary"]["cluster"] is None else "cluster"
    settings["algorithm"] = _read_algorithms(raw.get("algorithm"))
    settings["constraints"] = _read_constraints(raw.get("constraints", []))
    settings["privacy"] = _read_privacy(raw.get("privacy"))
    _take_formula(settings)
    _check_data(settings, elsewhere)
    return settings


def _check_name(name: object) -> None:
    """Raise where the name of a run could not be that of a folder in 'runs'."""
    if isinstance(name, str) and (not name.strip(". ") or re.search(r"[/\\\x00-\x1f]", name)):
        raise FoedusError(
            f"name = {name!r}: the run directory is called so; expected a name without slashes, which is no path. "
            "'out' says where else a run is kept."
        )


def _read_keys(request: Json, keys: Mapping[str, Key], place: str) -> Json:
    """The values of one section; those that the file leaves out have their defaults."""
    for name in request:
        if name not in keys:
            elsewhere = next((s for s, others in SECTIONS.items() if name in others and f"[{s}]" != place), None)
            hint = did_you_mean(name, keys) or (f" It belongs into [{elsewhere}]." if elsewhere else "")
            raise FoedusError(f"{place} has no key {name!r}; its keys are {', '.join(keys)}.{hint}")
    return {
        name: _read_value_or_list(request[name], key, f"{place} {name}".strip())
        if name in request
        else copy.copy(key.default)
        for name, key in keys.items()
    }


def _read_value_or_list(value: object, key: Key, place: str) -> object:
    if key.sweeps and isinstance(value, list):
        if not value:
            raise FoedusError(f"{place}: the list is empty; expected {KINDS[key.kind]}, or several.")
        return Several(tuple(_read_value(part, key, place) for part in value))
    return _read_value(value, key, place)


def _read_value(value: object, key: Key, place: str) -> object:
    """One value, if it is of the key's kind and within its limits."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    fits = {
        "text": isinstance(value, str),
        "number": number is not None,
        "whole": number is not None and float(number).is_integer(),
        "flag": isinstance(value, bool),
        "texts": isinstance(value, list) and all(isinstance(part, str) for part in value),
        "value": isinstance(value, str | int | float),
        "table": isinstance(value, dict),
        "files": isinstance(value, str | list | dict),
        "offer": isinstance(value, str | dict),
        "weights": value in ("sites", "rows") or isinstance(value, dict),
    }[key.kind]
    if not fits:
        raise FoedusError(f"{place} must be {KINDS[key.kind]}. Got {value!r} instead.")
    key.check(value, place)
    if key.kind == "whole" and number is not None:
        return int(number)
    if key.kind == "texts" and isinstance(value, list):
        return tuple(value)
    if key.kind == "value":
        if isinstance(value, bool):
            return str(value).lower()  # as a CSV file says it
        return value if number is None else number_text(number)
    if key.kind == "offer":
        return _read_offer(value, place)
    return value


def _read_offer(value: object, place: str) -> Json:
    """A name, or a table with a name and settings, each a value or several."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise FoedusError(f'{place}: the table needs a name, as in {{ name = "…", … }}.')
    return {key: _read_several(part, f"{place}.{key}") for key, part in value.items()}


def _read_several(value: object, place: str) -> object:
    """A value of a section whose keys come from the package: there, any list makes several runs."""
    if isinstance(value, list):
        if not value:
            raise FoedusError(f"{place}: the list is empty; expected a value, or several.")
        return Several(tuple(value))
    return value


def _read_algorithms(section: object) -> Json | Several:
    """The algorithm, or several of which each makes a run; "auto" where the file names none."""
    if section is None:
        section = "auto"
    if isinstance(section, str):
        section = {"name": section}
    sections = section if isinstance(section, list) else [section]
    tables: list[Json] = [one for one in sections if isinstance(one, dict)]
    if not tables or len(tables) < len(sections):
        raise FoedusError("'algorithm' must be a section [algorithm] with a name, or several sections [[algorithm]].")
    algorithms: list[Json] = []
    for one in tables:
        names = one.get("name")
        if names is None:
            raise FoedusError(f"[algorithm] needs a name: one of {', '.join(sorted(catalogue.algorithms()))}.")
        for name in names if isinstance(names, list) else [names]:
            offer = catalogue.find_algorithm(name, "[algorithm]")
            rest = {key: _read_several(v, f"[algorithm] {key}") for key, v in one.items() if key != "name"}
            for key in rest:
                if key not in offer.parameters:
                    offer.build({key: 0}, "[algorithm]")  # raises, with the settings there are
            algorithms.append({"name": offer.name} | rest)
    return algorithms[0] if len(algorithms) == 1 else Several(tuple(algorithms))


def _read_constraints(sections: object) -> list[Json]:
    """The constraints, each with its type and settings."""
    if isinstance(sections, dict):
        raise FoedusError("constraints are several: write [[constraints]], with two brackets, above each of them.")
    if not isinstance(sections, list) or not all(isinstance(one, dict) for one in sections):
        raise FoedusError("'constraints' must be sections [[constraints]], one for each constraint.")
    constraints: list[Json] = []
    for number, one in enumerate(sections, start=1):
        place = f"[[constraints]] {number}"
        offers = {**catalogue.constraints(), **catalogue.rates()}
        if "type" not in one:
            raise FoedusError(f"{place} needs a type: one of {', '.join(sorted(offers))}.")
        offer = catalogue.find_offer(one["type"], offers, place)
        rest = {key: _read_several(value, f"{place} {key}") for key, value in one.items() if key != "type"}
        constraints.append({"type": offer.name} | rest)
    return constraints


def _read_privacy(section: object) -> Json | None:
    """The section [privacy]: a total for each site, or the noise of one release."""
    if section is None:
        return None
    if not isinstance(section, dict):
        raise FoedusError("'privacy' must be a section [privacy].")
    offers = catalogue.noises()
    if not offers:
        raise FoedusError("[privacy]: this version of foedus has no noise to add; leave the section out.")
    if "noise" not in section:
        if "epsilon" not in section:
            raise FoedusError("[privacy] needs epsilon, the total for each site over the whole run.")
        if "budget" in section:
            raise FoedusError(
                "[privacy] budget: without noise, epsilon is the total for each site already; leave budget out, or "
                f"name the noise of one release: one of {', '.join(sorted(offers))}."
            )
        return {"noise": None, "budget": None} | {
            key: _read_several(v, f"[privacy] {key}") for key, v in section.items()
        }
    offer = catalogue.find_offer(section["noise"], offers, "[privacy] noise")
    rest = {key: _read_several(v, f"[privacy] {key}") for key, v in section.items() if key not in ("noise", "budget")}
    budget = (
        _read_value_or_list(section["budget"], Key("number", "", least=0, sweeps=True), "[privacy] budget")
        if "budget" in section
        else None
    )
    return {"noise": offer.name, "budget": budget} | rest


def _take_formula(settings: Settings) -> None:
    """Give the columns that a formula names their roles; raise where [data] says otherwise."""
    if (formula := settings["problem"]["formula"]) is None:
        return
    from foedus.data.formula import Design

    design, data = Design(formula), settings["data"]
    label = data["label"] or design.response
    if design.response != label:
        raise FoedusError(
            f"[problem] formula: the left side must be the label {label!r} of [data]. Got {design.response!r} instead."
        )
    if design.offset is not None:
        raise FoedusError("[problem] formula: an offset is not known in an experiment file; fd.glm takes one.")
    if settings["privacy"] is not None:
        raise FoedusError("[problem] formula does not go with [privacy]: no bound is known of its columns.")
    for key in ("features", "drop"):
        if data[key]:
            raise FoedusError(f"[data] {key}: the formula in [problem] says which columns are features; leave it out.")
    data["label"], data["features"] = label, tuple(name for name in design.names if name != label)
    codes = [name for name in design.categories(()).values() if name not in data["categorical"]]
    data["categorical"] = (*data["categorical"], *codes)


def _check_data(settings: Settings, elsewhere: bool) -> None:
    """Raise where the keys of [data] and [partition] do not fit together."""
    data = settings["data"]
    sources = [name for name in ("files", "file", "source", "set") if data[name] is not None]
    if (data["source"] is None) != (data["query"] is None):
        raise FoedusError("[data] source, a database, and query, what is read from it, go together.")
    if data["source"] is not None:
        check_source(data["source"], "[data] source")
    if elsewhere and not sources:
        if data["label"] is None:
            raise FoedusError("[data] needs label, the name of the column to predict.")
        return
    if len(sources) != 1:
        content = f"it has {' and '.join(sources)}" if sources else "it has none of them"
        raise FoedusError(f"[data] needs one of files, file, source and set to say where the rows are; {content}.")
    if data["label"] is None and data["set"] is None:
        raise FoedusError("[data] needs label, the name of the column to predict.")
    if data["set"] is not None and data["set"] not in SETS and not data["set"].startswith(OPENML):
        raise FoedusError(
            f"[data] set: there is no {data['set']!r}, only {', '.join(SETS)}.{did_you_mean(data['set'], SETS)}"
        )
    if data["site"] is not None and data["files"] is not None:
        raise FoedusError("[data] site names a column of one file; with files, each file is a site: leave site out.")
    if settings["has_partition"] and data["files"] is not None:
        raise FoedusError("[partition] deals out one table; with files, each file is a site: leave [partition] out.")
    if settings["has_partition"] and data["site"] is not None:
        raise FoedusError("[data] site already says which row is whose: leave [partition] out.")
    if data["site"] is None and data["files"] is None and not settings["has_partition"]:
        raise FoedusError(
            f"[data] {sources[0]} is one table: say which column is the site, or deal it out by [partition]."
        )
    for key in ("features", "drop", "categorical"):
        repeated = [name for place, name in enumerate(data[key] or ()) if name in data[key][:place]]
        if repeated:
            raise FoedusError(f"[data] {key} names {repeated[0]!r} twice; name each column once.")
    errors, cluster = settings["summary"]["errors"], settings["summary"]["cluster"]
    if (errors == "cluster") != (cluster is not None):
        raise FoedusError(
            "[summary]: errors = 'cluster' and cluster, the column that says which rows belong together, go together."
        )
    for both in ("label", "group", "site"):
        if data[both] is not None and data[both] in data["drop"]:
            raise FoedusError(f"[data] drop: {data[both]!r} is the {both} and cannot be left out.")


def _check_case(settings: Settings) -> None:
    """Raise where the package itself refuses one combination of settings, before any data are read."""
    from foedus.app.experiment import build, figures, sources

    figures.check_settings(settings)
    build.algorithm_of(settings)
    build.participation_of(settings)
    build.loss_of(settings)
    build.penalty_of(settings)
    build.regularizer_of(settings, 2)
    build.privacy_of(settings)
    build.runtime_of(settings)
    build.check_masks(settings)
    sources.partition_settings(settings)
    build.fit_arguments(settings)
    sources.remedies_by_site(settings)
