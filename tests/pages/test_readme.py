"""What the README shows is what its code prints."""

import contextlib
import io
from pathlib import Path
from typing import Any

from readme_blocks import BLOCK, same

README = Path(__file__).parents[2] / "README.md"


def test_code_prints_what_is_shown():
    blocks = BLOCK.findall(README.read_text(encoding="utf-8"))
    assert [language for language, _ in blocks] == ["python", "text", "python", "text"]
    names: dict[str, Any] = {}
    for (_, code), (_, shown) in zip(blocks[::2], blocks[1::2], strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(README), "exec"), names)
        same(shown.strip(), printed.getvalue().strip())


def test_every_algorithm_is_in_the_table():
    import foedus as fd
    from foedus.protocol.algorithm import Algorithm

    exported = [getattr(fd, name) for name in fd.__all__]
    text = README.read_text(encoding="utf-8")
    for made in exported:
        if isinstance(made, type) and issubclass(made, Algorithm):
            assert f"| `{made.__name__}` |" in text


def test_citation_names_this_version():
    import foedus as fd

    citation = (README.parent / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {fd.__version__}\n" in citation


def _column(part: str, row: str, column: int) -> list[str]:
    """The figures of a column in the rows of a part of the benchmark page that begin so."""
    page = (README.parent / "docs/benchmarks.md").read_text()
    block = page[page.index(f"<!-- bench {part} -->") : page.index(f"<!-- end of bench {part} -->")]
    cells = [[cell.strip() for cell in line.split("|")] for line in block.splitlines() if line.startswith(f"| {row}")]
    return [line[column] for line in cells]


def test_the_table_of_rounds_has_the_figures_of_the_benchmark_page():
    shown = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in README.read_text().split("## In tens of rounds")[1].split("\n## ")[0].splitlines()
        if line.startswith("| ") and "rounds |" not in line
    ]
    halves = [cell.split()[-1] for cell in _column("interior", "breast-cancer-wisc, half", 5)]
    measured = [
        _column("interior", "Neyman-Pearson, breast", 2),
        _column("interior", "Neyman-Pearson, breast", 3),
        _column("interior", "Neyman-Pearson, monks", 2),
        _column("interior", "Neyman-Pearson, monks", 3),
        _column("interior", "Neyman-Pearson, scikit", 2),
        _column("interior", "Neyman-Pearson, scikit", 3),
        _column("interior", "quadratic", 3),
        _column("interior", "fairness", 2),
        halves,
        _column("drfl", "hinge", 2),
        _column("drfl", "logistic", 2),
        [_column("newton", name, 6)[0] for name in ("phishing", "a9a", "w8a")],
    ]
    assert [row[3].split(" / ") for row in shown] == measured
    assert {row[2] for row in shown} == {"1 / 5 / 10 / 20", "1 / 5 / 10", "20", "10 / 20", "5", "142"}
