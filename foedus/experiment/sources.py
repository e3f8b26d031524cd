"""The sites' rows of an experiment file: which files hold them, what their columns are, how one table is dealt out."""

import glob
import inspect
from pathlib import Path
from typing import Any

import numpy as np

from foedus.data import loaders, sites, tables
from foedus.data.partition import PARTITIONERS, partition
from foedus.data.sites import Cohort, Roles
from foedus.data.tables import Table, Words, text_of
from foedus.errors import FoedusError
from foedus.experiment.build import Settings, loss_of


def files_of(asked: Any, folder: Path) -> dict[str, Path]:
    """The file of each site, by the site's name: a file is called after its name without the ending."""
    if isinstance(asked, dict):
        for site, name in asked.items():
            if not isinstance(name, str):
                raise FoedusError(
                    f"[data] files: the file of site {site!r} must be text in quotes. Got {name!r} instead."
                )
        return {site: folder / name for site, name in asked.items()}
    names = [asked] if isinstance(asked, str) else asked
    paths: list[Path] = []
    for name in names:
        if not isinstance(name, str):
            raise FoedusError(f"[data] files must be a list of texts. Got {name!r} among them.")
        if glob.has_magic(name):
            found = sorted(Path(hit) for hit in glob.glob(str(folder / name)))
            if not found:
                raise FoedusError(f"[data] files: no file matches {name!r} in {folder.absolute()}.")
            paths += [hit for hit in found if hit.is_file()]
        else:
            paths.append(folder / name)
    sites: dict[str, Path] = {}
    for path in paths:
        if path.stem in sites:
            raise FoedusError(
                f"[data] files: {sites[path.stem]} and {path} would both be site {path.stem!r}; give each site a name, "
                'as in files = { north = "a/site.csv", south = "b/site.csv" }.'
            )
        sites[path.stem] = path
    if not sites:
        raise FoedusError("[data] files is empty; expected at least one file.")
    return sites


def roles_of(settings: Settings) -> Roles:
    asked = settings["data"]
    known = loaders.data_set(asked["set"]) if asked["set"] is not None else None
    label, positive, group = asked["label"], asked["positive"], asked["group"]
    if known is not None:
        positive = known.positive if positive is None and label in (None, known.label) else positive
        label, group = label or known.label, group or known.group
    return Roles(
        label=label,
        positive=positive,
        group=group,
        features=asked["features"],
        drop=asked["drop"],
        categorical=asked["categorical"],
        missing=asked["missing"],
        max_categories=asked["max_categories"],
        classification=loss_of(settings).kind == "classification",
    )


def sources_of(settings: Settings, folder: Path) -> list[Path]:
    """The files that the data come from."""
    data = settings["data"]
    paths = list(files_of(data["files"], folder).values()) if data["files"] is not None else []
    paths += [folder / data[key] for key in ("file", "server") if data[key] is not None]
    return paths


def tables_of(settings: Settings, folder: Path) -> dict[str, Table]:
    """Each site's table."""
    data = settings["data"]
    if data["files"] is not None:
        found = files_of(data["files"], folder)
        return {site: tables.read(path, data["separator"]) for site, path in found.items()}
    whole = (
        loaders.load(data["set"]) if data["set"] is not None else tables.read(folder / data["file"], data["separator"])
    )
    if data["site"] is not None:
        return sites.by_column(whole, data["site"])
    return _dealt(whole, settings)


def _dealt(whole: Table, settings: Settings) -> dict[str, Table]:
    """One table, dealt out by [partition]."""
    asked, roles = settings["partition"], roles_of(settings)
    named = asked["partition_by"]
    column = whole.column(named or roles.label, "partition_by in [partition]" if named else "label in [data]")
    if asked["method"] == "natural" or isinstance(column, Words):
        words = text_of(column)
        values: Any = np.array([*words.levels, "(missing)"])[words.codes]
    else:
        values = column
    try:
        dealt = partition(asked["method"], values, **partition_settings(settings))
    except FoedusError as error:
        raise FoedusError(f"[partition]: {error}") from None
    return {site: whole.take(np.sort(rows)) for site, rows in dealt.items()}


def cohort_of(settings: Settings, folder: Path) -> Cohort:
    """The sites' rows, read and checked."""
    server = settings["data"]["server"]
    own = None if server is None else tables.read(folder / server, settings["data"]["separator"])
    return sites.gather(tables_of(settings, folder), roles_of(settings), own)


def partition_settings(settings: Settings) -> dict[str, Any]:
    """The arguments of the partitioner; those it does not have are refused."""
    asked = settings["partition"]
    if not settings["has_partition"]:
        return {}
    known = inspect.signature(PARTITIONERS[asked["method"]]).parameters
    given = {k: v for k, v in asked.items() if k not in ("method", "partition_by", "seed") and v is not None}
    for name in given:
        if name not in known:
            has = ", ".join(k for k in known if k != "values") or "none"
            raise FoedusError(f"[partition] method {asked['method']!r} has no key {name!r}; its keys are {has}.")
    if "num_partitions" in known and "num_partitions" not in given:
        raise FoedusError("[partition] needs num_partitions, the number of sites.")
    if asked["method"] in ("natural", "by_column") and asked["partition_by"] is None:
        raise FoedusError(f"[partition] method {asked['method']!r} needs partition_by, the column to deal out by.")
    return given | ({"seed": asked["seed"]} if "seed" in known else {})
