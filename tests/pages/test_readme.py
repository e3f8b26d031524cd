"""What the README shows is what its code prints."""

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hospitals import commands
from readme_blocks import BLOCK, same

README = Path(__file__).parents[2] / "README.md"


def test_code_prints_what_is_shown():
    blocks = BLOCK.findall(README.read_text(encoding="utf-8"))
    assert [language for language, _ in blocks] == ["python", "text"]
    names: dict[str, Any] = {}
    for (_, code), (_, shown) in zip(blocks[::2], blocks[1::2], strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(README), "exec"), names)
        same(shown.strip(), printed.getvalue().strip())


@pytest.mark.slow
def test_commands_about_own_files_go_through_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    part = README.read_text(encoding="utf-8").split("## Your files")[1].split("\n## ")[0]
    printed = [shlex.split(line, comments=True) for line in part.splitlines() if line.startswith("    foedus ")]
    assert [words[1] for words in printed] == ["init", "check", "run", "predict", "evaluate", "frontier"]
    foedus = commands("", tmp_path, monkeypatch, capsys)
    (tmp_path / "sites").mkdir()
    for path in (tmp_path / "hospitals").glob("*.csv"):
        rows = path.read_text().replace("readmitted", "ill")
        (tmp_path / "sites" / path.name).write_text(rows)
        (tmp_path / "new.csv").write_text(rows)
    for words in printed:
        result = foedus(*words[1:])
        assert result.status == 0, (words, result.err)


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


def test_rounds_are_those_of_the_benchmark_page():
    text = " ".join(README.read_text().split())
    roughly, closely = (
        _column("interior", "Neyman-Pearson, scikit-learn's breast cancer, 5 sites", c)[0] for c in (2, 3)
    )
    assert f"The problem above takes {roughly} rounds to residuals of 1e-3, and {closely} to 1e-8" in text
    newton = " / ".join(_column("newton", name, 6)[0] for name in ("phishing", "a9a", "w8a"))
    assert f"takes {newton} on phishing, a9a and w8a, where published second-order code takes 15 to 20" in text


def test_every_linked_page_is_there():
    links = re.findall(r"\]\((?!http)([^)#]+)", README.read_text())
    assert len(links) > 10
    assert [link for link in links if not (README.parent / link).is_file()] == []
