"""The code on the documentation's pages runs and prints what is shown; every page and algorithm is in its place."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from test_readme import BLOCK, same

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
RUN = [page for page in PAGES if "```python" in (DOCS / page).read_text(encoding="utf-8") and page != "errata.md"]


@pytest.mark.parametrize("page", RUN)
def test_code_runs_and_prints_what_is_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    for i, (language, code) in enumerate(blocks):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        following = blocks[i + 1] if i + 1 < len(blocks) else ("", "")
        if printed.getvalue():
            assert following[0] == "text", f"{page} does not show what its code prints"
            same(following[1].strip(), printed.getvalue().strip())


@pytest.mark.slow
def test_code_of_the_errata_runs(capsys: pytest.CaptureFixture[str]):
    for language, code in BLOCK.findall((DOCS / "errata.md").read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(code, "errata.md", "exec"), {"__name__": "errata"})
            assert float(capsys.readouterr().out) == pytest.approx(1.801, abs=0.03)


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == PAGES


def test_every_algorithm_has_its_page_and_every_setting_its_row():
    import importlib.util

    import foedus as fd
    from foedus.algorithm import Algorithm

    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    exported = [getattr(fd, name) for name in fd.__all__]
    for made in exported:
        if not (isinstance(made, type) and issubclass(made, Algorithm)):
            continue
        page = DOCS / "algorithms" / f"{made.__name__.lower()}.md"
        assert page.is_file(), f"{made.__name__} has no page"
        text = page.read_text(encoding="utf-8")
        for part in ("**Use it**", f"<!-- settings of {made.__name__} -->"):
            assert part in text
        filled = hooks.on_page_markdown(text)
        for name, default in made.__dataclass_fields__.items():
            assert f"| `{name}` | `{default.default!r}` |" in filled
    assert "## foedus report" in hooks.on_page_markdown((DOCS / "reference" / "cli.md").read_text(encoding="utf-8"))
