"""The figures of `foedus bench` in a Markdown page: each part between two marks, which a later run replaces.

What stands outside the marks is prose and stays as it is. A part that the page does not have yet is added at its end.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from foedus.benchmarks.harness import Measurement, machine
from foedus.errors import FoedusError
from foedus.files import write_whole

PEERS = (
    "cvxpy",
    "clarabel",
    "scipy",
    "scikit-learn",
    "fedjax",
    "flwr",
    "pfl",
    "dro",
    "skwdro",
    "fairlearn",
    "diffprivlib",
)


def write(page: Path, name: str, title: str, lines: Sequence[Measurement], command: str) -> None:
    """Write the measurements of one part into a page, whole or not at all.

    Args:
        page: a Markdown file; it must exist.
        name: the part, as `foedus bench --only` takes it.
        title: what the part measures, in words.
        lines: its measurements.
        command: the command that measured them.
    """
    if not page.is_file():
        raise FoedusError(f"--write {page}: there is no such file; name a Markdown page that exists.")
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- bench {name} -->", f"<!-- end of bench {name} -->"
    if text.count(begin) > 1 or text.count(begin) != text.count(end) or text.find(begin) > text.find(end):
        raise FoedusError(f"--write {page}: the marks '{begin}' and '{end}' must stand there once each, in this order.")
    section = f"{begin}\n{_section(lines, command)}\n{end}"
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


def _section(lines: Sequence[Measurement], command: str) -> str:
    rows = ["| what | seconds | ratio | against | target | |", "|---|---:|---:|---|---|---|"]
    rows += [f"| {' | '.join(_cells(line))} |" for line in lines]
    software = ", ".join(f"{name} {number}" for name, number in _versions().items())
    return "\n".join([f"Measured by `{command}` ({machine()}; {software}).", "", *rows])


def _cells(line: Measurement) -> tuple[str, ...]:
    ratio = f"{line.ratio:.3g} x" if line.reference else ""
    extra = ", ".join(f"{key} {value}" for key, value in line.extra.items())
    cells = (line.what, f"{line.seconds:.3g}", ratio, line.against, line.verdict, extra)
    return tuple(cell.replace("|", "\\|") for cell in cells)


def _versions() -> dict[str, str]:
    """The versions of foedus, JAX and of those peers that are installed."""
    table: dict[str, str] = {}
    for package in ("foedus", "jax", "numpy", *PEERS):
        try:
            table[package] = version(package)
        except PackageNotFoundError:
            continue
    return table
