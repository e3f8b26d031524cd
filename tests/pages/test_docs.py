"""The code on the documentation's pages runs and prints what is shown; every page and algorithm is in its place."""

import contextlib
import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from readme_blocks import BLOCK, same

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
# a block of code, and what it prints if that is shown right after it
SHOWN = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
# pages whose code is a fragment: it speaks of a problem that is stated elsewhere
FRAGMENTS = {"privacy.md"}
# pages that run among the quick tests; the code of all others is only read there
QUICK = {
    "index.md",
    "tutorial.md",
    "howto/infeasible.md",
    "howto/own-algorithm.md",
    "howto/privacy-budget.md",
    "howto/report.md",
}
RUN = [
    pytest.param(page, marks=[] if page in QUICK else [pytest.mark.slow])
    for page in PAGES
    if "```python" in (DOCS / page).read_text(encoding="utf-8") and page != "errata.md"
]


@pytest.mark.parametrize("page", RUN)
def test_code_runs_and_prints_what_is_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    if page in FRAGMENTS:
        import foedus as fd

        x = np.random.default_rng(0).normal(size=(3000, 2))  # enough rows and sites for every kind of noise
        sites = fd.data.split(x, (x[:, 0] > 0).astype(float), clients=5, seed=0)
        names |= {"fd": fd, "problem": fd.Problem(sites, loss=fd.losses.logistic)}
    for code, shown in SHOWN.findall((DOCS / page).read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        if shown or page not in FRAGMENTS:
            same(shown.strip(), printed.getvalue().strip())


@pytest.mark.parametrize("page", PAGES)
def test_code_can_be_read_and_names_what_foedus_has(page: str):
    import foedus as fd

    for language, code in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if language == "python":
            compile(code, page, "exec")
            missing = [name for name in re.findall(r"\bfd\.([a-zA-Z]\w*)", code) if not hasattr(fd, name)]
            assert not missing, missing


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
    from foedus.protocol.algorithm import Algorithm

    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    exported = [getattr(fd, name) for name in fd.__all__]
    every = (DOCS / "algorithms" / "index.md").read_text(encoding="utf-8")
    for made in exported:
        if not (isinstance(made, type) and issubclass(made, Algorithm)):
            continue
        page = DOCS / "algorithms" / f"{made.__name__.lower()}.md"
        assert page.is_file(), f"{made.__name__} has no page"
        assert f"\n| [{made.__name__}]({page.name}) |" in every
        text = page.read_text(encoding="utf-8")
        for part in ("**Use it**", f"<!-- settings of {made.__name__} -->"):
            assert part in text
        filled = hooks.on_page_markdown(text)
        for f in dataclasses.fields(made):
            assert not f.metadata or f"| `{f.name}` | `{f.default!r}` |" in filled
    assert "## foedus report" in hooks.on_page_markdown((DOCS / "reference" / "cli.md").read_text(encoding="utf-8"))


def test_no_figure_is_left_to_be_filled_in():
    for path in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]:
        left = re.findall(r"(?<![\w.])@[A-Z][A-Z0-9]+\b|\bTODO\b|\bXXX\b", path.read_text())
        assert not left, (path.name, left)


@pytest.mark.parametrize(
    ("shown", "printed", "agree"),
    [
        ("0.824, between 0.799 and 0.847", "0.813, between 0.787 and 0.837", False),
        ("0.813", "0.814", False),
        ("residual 5e-07", "residual 5.01e-07", True),
        ("gap 3e-09, 12 rounds", "gap 8e-10, 12 rounds", True),
        ("gap 3e-09, 12 rounds", "gap 3e-09, 13 rounds", False),
        ("took 1.2 s", "took 3.4 s", True),
    ],
)
def test_outputs_are_compared_to_the_digit(shown: str, printed: str, agree: bool):
    with contextlib.nullcontext() if agree else pytest.raises(AssertionError):
        same(shown, printed)
