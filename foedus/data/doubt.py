"""A doubt about the data, and the line of an experiment file that mends it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Doubt:
    """One thing that looks wrong: where, in which column ('' for whole rows), a sentence, and lines that mend it."""

    site: str
    column: str
    text: str
    remedy: tuple[str, ...] = ()  # lines of TOML for the site's section; of several sites, for the section of each

    def __str__(self) -> str:
        place = f"{self.site}, column {self.column!r}" if self.column else self.site
        section = f"[data.sites.{toml_key(self.site)}]" if ", " not in self.site else "[data.sites.NAME] of each"
        lines = "".join(f"\n      under {section}: {line}" for line in self.remedy)
        return f"{place}: {self.text}{lines}"


def toml_text(text: str) -> str:
    """Return a text in the quotes of TOML."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def toml_key(name: str) -> str:
    """Return a name as a key of TOML, in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)


def map_lines(column: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines that replace values of a column, one each; an empty text is a missing value."""
    return tuple(f"map.{toml_key(column)}.{toml_key(old)} = {toml_text(new)}" for old, new in values.items())


def scale_line(column: str, factor: float) -> str:
    """Return the line that multiplies a column."""
    return f"scale.{toml_key(column)} = {factor:.6g}"


def drop_line(column: str) -> str:
    """Return the line that leaves a column out."""
    return f"drop = [{toml_text(column)}]"
