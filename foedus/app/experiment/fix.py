"""Remedies for doubts, written into an experiment file: `foedus check --fix`.

Only remedies that need nobody's judgement are written: one word for what sites spell differently, other names of a
column, codes for missing values, decimal commas, known units. Nothing else of the file changes.
"""

import difflib
import tomllib
from pathlib import Path

from foedus.app.experiment.file import Experiment, load
from foedus.app.experiment.sources import roles_of, tables_of
from foedus.app.experiment.sweep import Settings
from foedus.base.errors import FoedusError
from foedus.data.doubts import Doubt, doubts, structure, toml_key
from foedus.data.sites import gather

PASSES = 4  # a remedy may show what another column needs


def doubts_in(settings: Settings, folder: Path) -> list[Doubt]:
    """Return what looks wrong in the data, also where the tables cannot be read together as they are."""
    roles = roles_of(settings)
    tables, results = structure(tables_of(settings, folder), roles)
    try:
        return [*results, *doubts(gather(tables, roles))]
    except FoedusError:
        return results


def fix(path: Path) -> tuple[str, str]:
    """Return the text of an experiment file with the remedies that are sure, and the difference to what it is now."""
    before = text = path.read_text(encoding="utf-8")
    for _ in range(PASSES):
        experiment = _load(path, text)
        results = [one for one in doubts_in(experiment.cases[0].settings, experiment.folder) if one.sure and one.remedy]
        following = _with_remedies(text, results)
        if following == text:
            break
        text = following
    lines = difflib.unified_diff(
        before.splitlines(), text.splitlines(), str(path), f"{path} (mended)", lineterm="", n=2
    )
    return text, "\n".join(lines)


def _load(path: Path, text: str) -> Experiment:
    try:
        return load(path, text=text)
    except FoedusError as error:
        raise FoedusError(
            f"{error} The remedies that 'foedus check' shows do not fit beside what the file has; write them yourself."
        ) from None


def _with_remedies(text: str, results: list[Doubt]) -> str:
    """The text with the lines of each remedy in the section of its site."""
    by_site: dict[str, list[str]] = {}
    for doubt in results:
        for site in doubt.sites:
            by_site.setdefault(site, []).extend(doubt.remedy)
    lines = text.splitlines()
    for site, remedies in by_site.items():
        lines = _in_section(lines, site, [*dict.fromkeys(remedies)])
    return "\n".join(lines) + "\n"


def _in_section(lines: list[str], site: str, remedies: list[str]) -> list[str]:
    """The lines of a file with some more in [data.sites.SITE]: at the end of its keys, or in a new section."""
    headers = {place: _header(line) for place, line in enumerate(lines) if line.lstrip().startswith("[")}
    places = sorted(headers)
    own = next((place for place in places if headers[place] == ["data", "sites", site]), None)
    if own is not None:
        return [*lines[: own + 1], *remedies, *lines[own + 1 :]]
    last = max((place for place in places if headers[place][:1] == ["data"]), default=-1)
    end = next((place for place in places if place > last), len(lines))
    while end > 0 and not lines[end - 1].strip():
        end -= 1
    return [*lines[:end], "", f"[data.sites.{toml_key(site)}]", *remedies, *lines[end:]]


def _header(line: str) -> list[str]:
    """The names of a section's header; none where it is no header."""
    try:
        node = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return []
    names = []
    while isinstance(node, dict) and len(node) == 1:
        name, node = next(iter(node.items()))
        names.append(name)
    return names
