"""The figures of `foedus bench` in a Markdown page: each part between two marks, which a later run replaces.

What stands outside the marks is prose and stays as it is. A part that the page does not have yet is added at its end.
"""

import math
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import write_whole
from foedus_lab.benchmarks.harness import Measurement, machine


def write(
    page: Path, name: str, title: str, lines: Sequence[Measurement], command: str, peers: Sequence[str] = ()
) -> None:
    """Write the measurements of one part into a page, whole or not at all.

    Args:
        page: a Markdown file; it must exist.
        name: the part, as `foedus bench --only` takes it.
        title: what the part measures, in words.
        lines: its measurements.
        command: the command that measured them.
        peers: the packages beside foedus, JAX and NumPy whose versions the page names, where they are installed.
    """
    if not page.is_file():
        raise FoedusError(f"--write {page}: there is no such file; name a Markdown page that exists.")
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- bench {name} -->", f"<!-- end of bench {name} -->"
    if text.count(begin) > 1 or text.count(begin) != text.count(end) or text.find(begin) > text.find(end):
        raise FoedusError(f"--write {page}: the marks '{begin}' and '{end}' must stand there once each, in this order.")
    section = f"{begin}\n{_section(lines, command, peers)}\n{end}"
    if begin in text:
        before, _, rest = text.partition(begin)
        text = before + section + rest.partition(end)[2]
    else:
        text = f"{text.rstrip()}\n\n## {title[0].upper()}{title[1:]}\n\n{section}\n"
    write_whole(page, text.encode())


def check(page: Path) -> None:
    """Raise before anything is measured where the page cannot be written."""
    if not page.is_file():
        raise FoedusError(f"--write {page}: there is no such file; name a Markdown page that exists.")


def _section(lines: Sequence[Measurement], command: str, peers: Sequence[str]) -> str:
    software = ", ".join(f"{name} {number}" for name, number in _versions(peers).items())
    table = _columns(lines)
    rows = [" | ".join(table), "|".join("---" if name in TEXTS else "---:" for name in table)]
    rows += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in zip(*table.values(), strict=True)]
    about = f"Measured by `{command}` on {date.today().isoformat()} ({machine()}; {software})."
    return "\n".join([about, "", *(f"| {row} |" if "---" not in row else f"|{row}|" for row in rows)])


TEXTS = ("what", "against", "target", "")  # columns that are not numbers


def _columns(lines: Sequence[Measurement]) -> dict[str, list[str]]:
    """The cells of a table by column, without empty columns; what `extra` has in every line has a column of its own."""
    shared = [key for key in lines[0].extra if all(key in line.extra for line in lines)]
    columns = {
        "what": [line.what for line in lines],
        "seconds": ["" if math.isnan(line.seconds) else f"{line.seconds:.3g}" for line in lines],
        "ratio": [f"{line.ratio:.3g} x" if line.reference else "" for line in lines],
        "against": [line.against for line in lines],
        "target": [line.verdict for line in lines],
        **{key: [str(line.extra[key]) for line in lines] for key in shared},
        "": [", ".join(f"{k} {v}" for k, v in line.extra.items() if k not in shared) for line in lines],
    }
    return {name: cells for name, cells in columns.items() if any(cells)}


def _versions(peers: Sequence[str]) -> dict[str, str]:
    """The versions of foedus, JAX, NumPy and of those peers that are installed."""
    table: dict[str, str] = {}
    for package in ("foedus", "jax", "numpy", *peers):
        try:
            table[package] = version(package)
        except PackageNotFoundError:
            continue
    return table
