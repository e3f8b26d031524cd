"""Figures of `foedus bench` in a page: they replace those of an earlier run, and nothing else changes."""

from importlib.metadata import version

import pytest

from foedus.base.errors import FoedusError
from foedus_lab.benchmarks import suite
from foedus_lab.benchmarks.harness import Measurement
from foedus_lab.benchmarks.page import write

LINES = [
    Measurement("a round | of 10 sites", 0.2, "NumPy", 0.1, limit=1.0, extra={"rounds": 7}),
    Measurement("import", 0.9),
]


def test_a_part_is_replaced_and_the_prose_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nBefore.\n\n<!-- bench speed -->\nold figures\n<!-- end of bench speed -->\n\nAfter.\n")
    write(page, "speed", "how fast", LINES, "foedus bench --only speed")
    text = page.read_text()
    assert "old figures" not in text
    assert text.startswith("# Page\n\nBefore.\n\n<!-- bench speed -->\nMeasured by `foedus bench --only speed`")
    assert text.endswith("<!-- end of bench speed -->\n\nAfter.\n")
    assert "| a round \\| of 10 sites | 0.2 | 2 x | NumPy | <= 1: NO | rounds 7 |" in text
    assert "|---|---:|---:|---|---|---|\n" in text
    write(page, "speed", "how fast", LINES, "foedus bench --only speed")
    assert page.read_text().count("a round") == 1


def test_what_all_lines_state_has_a_column_and_empty_columns_go(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    lines = [
        Measurement("a", float("nan"), extra={"rounds": 7}),
        Measurement("b", float("nan"), extra={"rounds": 9, "kB": 2}),
    ]
    write(page, "rounds", "how many", lines, "foedus bench --only rounds", ("pytest", "no-such-package"))
    text = page.read_text()
    assert "| what | rounds |  |\n|---|---:|---|\n| a | 7 |  |\n| b | 9 | kB 2 |" in text
    assert f"pytest {version('pytest')})" in text
    assert "no-such-package" not in text


def test_a_part_without_measurements_leaves_the_page_and_says_so(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    monkeypatch.setitem(suite.PARTS, "federation", suite.Part("rounds", lambda quick: []))
    said: list[str] = []
    suite.run("federation", write=page, echo=said.append)
    assert page.read_text() == "# Page\n"
    assert "left out" in said[-1]


def test_without_only_a_part_that_lacks_its_data_is_left_out_and_the_others_are_measured(monkeypatch):
    def lacks(quick):
        raise FoedusError("expected in $FOEDUS_DATA/w8a.gz.")

    parts = {"one": suite.Part("one", lacks), "two": suite.Part("two", lambda quick: LINES)}
    monkeypatch.setattr(suite, "PARTS", parts)
    said: list[str] = []
    assert suite.run(echo=said.append) == LINES
    assert "  left out: expected in $FOEDUS_DATA/w8a.gz." in said
    with pytest.raises(FoedusError, match="w8a"):
        suite.run("one", echo=said.append)


def test_a_part_that_is_not_there_is_added_at_the_end(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    write(page, "speed", "how fast", LINES, "foedus bench --only speed")
    assert "## How fast\n\n<!-- bench speed -->" in page.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "<!-- bench speed -->\n",
        "<!-- end of bench speed --><!-- bench speed -->",
        "<!-- bench speed --><!-- bench speed --><!-- end of bench speed --><!-- end of bench speed -->",
    ],
)
def test_marks_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(FoedusError, match="must stand there once each"):
        write(page, "speed", "how fast", LINES, "foedus bench --only speed")
    assert page.read_text() == text


def test_a_page_that_does_not_exist_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setitem(suite.PARTS, "gradients", suite.Part("", lambda quick: pytest.fail("it measures")))
    with pytest.raises(FoedusError, match="there is no such file"):
        suite.run("gradients", write=tmp_path / "none.md", echo=lambda line: None)
