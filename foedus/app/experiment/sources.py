"""Reads the sites' rows of an experiment: finds the files, gives the columns their roles, deals out a single table."""

import glob
import inspect
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from foedus.app.experiment.build import loss_of
from foedus.app.experiment.sweep import Settings
from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.data import loaders, sites, sql, tables
from foedus.data.columns import Words, text_of
from foedus.data.formats import Format, site_name
from foedus.data.partition import PARTITIONERS, partition
from foedus.data.remedies import Remedies, remedies_of
from foedus.data.sites import Cohort, Roles
from foedus.data.tables import Table


def files_of(request: object, folder: Path) -> dict[str, Path]:
    """Return the file of each site by the site's name, which is the file's name without its ending if none is given.

    `request` is the value of files in [data]: a pattern or name, a list of them, or a table of site = file.
    """
    if isinstance(request, dict):
        for site, name in request.items():
            if not isinstance(name, str):
                raise FoedusError(
                    f"[data] files: the file of site {site!r} must be text in quotes. Got {name!r} instead."
                )
        return {site: folder / name for site, name in request.items()}
    names = request if isinstance(request, list) else [request]
    paths: list[Path] = []
    for name in names:
        if not isinstance(name, str):
            raise FoedusError(f"[data] files must be a list of texts. Got {name!r} among them.")
        if glob.has_magic(name):
            matches = sorted(Path(hit) for hit in glob.glob(str(folder / name)))
            if not matches:
                raise FoedusError(f"[data] files: no file matches {name!r} in {folder.absolute()}.")
            for hit in matches:
                if not hit.is_file():
                    what = "is a folder" if hit.is_dir() else "is a link to nothing"
                    raise FoedusError(
                        f"[data] files: {name!r} matches {hit}, which {what}; expected a file for each site: take it "
                        "away, or name the files one by one."
                    )
            paths += matches
        else:
            paths.append(folder / name)
    sites: dict[str, Path] = {}
    for path in paths:
        name = site_name(path)
        if name in sites:
            raise FoedusError(
                f"[data] files: {sites[name]} and {path} would both be site {name!r}; give each site a name, "
                'as in files = { north = "a/site.csv", south = "b/site.csv" }.'
            )
        sites[name] = path
    if not sites:
        raise FoedusError("[data] files is empty; expected at least one file.")
    return sites


def roles_of(settings: Settings) -> Roles:
    """Return the roles of the columns; a data set that is named brings its own label and group."""
    request = settings["data"]
    data_set = loaders.data_set(request["set"]) if request["set"] is not None else None
    label, positive, group = request["label"], request["positive"], request["group"]
    if data_set is not None:
        positive = data_set.positive if positive is None and label in (None, data_set.label) else positive
        label, group = label or data_set.label, group or data_set.group
    return Roles(
        label=label,
        positive=positive,
        group=group,
        cluster=settings["summary"]["cluster"],
        features=request["features"],
        drop=request["drop"],
        categorical=request["categorical"],
        missing=request["missing"],
        max_categories=request["max_categories"],
        classification=loss_of(settings).kind == "classification",
    )


def sources_of(settings: Settings, folder: Path) -> list[Path]:
    """Return the files that the data come from."""
    data = settings["data"]
    paths = list(files_of(data["files"], folder).values()) if data["files"] is not None else []
    paths += [folder / data[key] for key in ("file", "server") if data[key] is not None]
    return paths


def tables_of(settings: Settings, folder: Path) -> dict[str, Table]:
    """Read each site's table."""
    data = settings["data"]
    if data["files"] is not None:
        files = files_of(data["files"], folder)
        remedies = remedies_by_site(settings)
        parts = {s: tables.read(p, form_of(settings, remedies.get(s, Remedies()))) for s, p in files.items()}
    else:
        if data["set"] is not None:
            whole = loaders.load(data["set"])
        elif data["source"] is not None:
            whole = sql.read(data["source"], data["query"], folder)
        else:
            whole = tables.read(folder / data["file"], form_of(settings, Remedies()))
        parts = sites.by_column(whole, data["site"]) if data["site"] is not None else _deal_out(whole, settings)
    return with_remedies(parts, settings)


def remedies_by_site(settings: Settings) -> dict[str, Remedies]:
    """Return the remedies of [data.sites] by site; raise where one does not fit the rest of [data]."""
    data = settings["data"]
    remedies = {str(s): remedies_of(table, f"[data.sites.{s}]") for s, table in (data["sites"] or {}).items()}
    for site, remedy in remedies.items():
        key = next((k for k, v in vars(remedy.form).items() if v is not None), None)
        if data["files"] is None and key is not None and site != "server":
            raise FoedusError(f"[data.sites.{site}] {key}: the sites share one file; write {key} into [data] instead.")
    return remedies


def with_remedies(parts: Mapping[str, Table], settings: Settings) -> dict[str, Table]:
    """Return the tables after the remedies of their sites."""
    remedies = remedies_by_site(settings)
    for site in remedies:
        if site not in parts and (site != "server" or settings["data"]["server"] is None):
            raise FoedusError(f"[data.sites.{site}]: there is no such site.{did_you_mean(site, parts)}")
    return {s: remedies.get(s, Remedies()).apply(table, f"[data.sites.{s}]") for s, table in parts.items()}


def form_of(settings: Settings, remedy: Remedies) -> Format:
    """Return how a site's file is written: as its own section says, and else as [data] does."""
    data = settings["data"]
    return remedy.form.over(Format(data["separator"], data["encoding"], data["decimal"]))


def _deal_out(whole: Table, settings: Settings) -> dict[str, Table]:
    """Divide one table among sites, as [partition] says."""
    request, roles = settings["partition"], roles_of(settings)
    column_name = request["partition_by"]
    column = whole.column(
        column_name or roles.label, "partition_by in [partition]" if column_name else "label in [data]"
    )
    if request["method"] == "natural" or isinstance(column, Words):
        words = text_of(column)
        values = np.array([*words.levels, "(missing)"])[words.codes]
    else:
        values = column
    try:
        parts = partition(request["method"], values, **partition_settings(settings))
    except FoedusError as error:
        raise FoedusError(f"[partition]: {error}") from None
    return {site: whole.take(np.sort(rows)) for site, rows in parts.items()}


def cohort_of(settings: Settings, folder: Path) -> Cohort:
    """Read and check the sites' rows."""
    server = settings["data"]["server"]
    own = None
    if server is not None:
        remedy = remedies_by_site(settings).get("server", Remedies())
        own = remedy.apply(tables.read(folder / server, form_of(settings, remedy)), "[data.sites.server]")
    return sites.gather(tables_of(settings, folder), roles_of(settings), own)


def partition_settings(settings: Settings) -> Json:
    """Return the arguments of the partitioner; raise where it does not have one, or needs another."""
    request = settings["partition"]
    if not settings["has_partition"]:
        return {}
    parameters = inspect.signature(PARTITIONERS[request["method"]]).parameters
    arguments = {k: v for k, v in request.items() if k not in ("method", "partition_by", "seed") and v is not None}
    for name in arguments:
        if name not in parameters:
            has = ", ".join(k for k in parameters if k != "values") or "none"
            raise FoedusError(f"[partition] method {request['method']!r} has no key {name!r}; its keys are {has}.")
    if "num_partitions" in parameters and "num_partitions" not in arguments:
        raise FoedusError("[partition] needs num_partitions, the number of sites.")
    if request["method"] in ("natural", "by_column") and request["partition_by"] is None:
        raise FoedusError(f"[partition] method {request['method']!r} needs partition_by, the column to deal out by.")
    seed = settings["seed"] if request["seed"] is None else request["seed"]
    return arguments | ({"seed": seed} if "seed" in parameters else {})
