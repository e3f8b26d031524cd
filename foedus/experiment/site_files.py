"""The files of an experiment's sites, by what its section [data] says; JAX is not needed for this."""

import glob
import tomllib
from pathlib import Path

from foedus.data.ahead import read_ahead
from foedus.data.formats import Format, site_name
from foedus.errors import FoedusError
from foedus.files import Json

FORMAT = ("separator", "encoding", "decimal")


def read_large_files(experiment: Path) -> None:
    """Read the files of an experiment ahead where they are large; what is wrong with it is left to those who check it.

    A command calls this before it imports what needs JAX.
    """
    try:
        data = tomllib.loads(experiment.read_text(encoding="utf-8"))["data"]
        folder = experiment.parent
        files = files_of(data["files"], folder) if "files" in data else {"": folder / data["file"]}
        own = data.get("sites", {})
        read_ahead({path: _form(own.get(site, {})).over(_form(data)) for site, path in files.items()})
    except (FoedusError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return


def _form(section: Json) -> Format:
    return Format(**{key: section.get(key) for key in FORMAT})


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
            paths += [hit for hit in matches if hit.is_file()]
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
