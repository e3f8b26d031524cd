"""All experiments on one page: what is missing is said, what was made is not made again, and nothing is lost."""

import json
import re
from pathlib import Path

import pytest
from page_reader import Reader

from foedus.base.errors import FoedusError
from foedus_lab.papers import EXPERIMENTS
from foedus_lab.papers.album import PAGE, reproduce_all
from foedus_lab.papers.costs import COSTS
from foedus_lab.papers.experiment import Options, PaperExperiment
from foedus_lab.papers.table import PaperTable

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"/>'


class Papers:
    """Three experiments that count how often they are run; the second lacks its data."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.interrupted = False
        experiments = (
            PaperExperiment("one", "Table <1>", self.table),
            PaperExperiment("two", "Table 2", self.without_data),
            PaperExperiment("three", "Figure 3", self.figure),
        )
        self.experiments = {e.name: e for e in experiments}

    def table(self, options: Options) -> None:
        self.calls.append("one")
        options.echo("printed 1.744, ours <1.745>")
        options.echo(PaperTable("Rounds", ("k0", "ours", "printed"), (("1", "12", "13 & more"),), ("one instance",)))
        options.keep("one.csv", b"a,b\n")

    def without_data(self, options: Options) -> None:
        self.calls.append("two")
        raise FoedusError("the data set 'qot' is expected in $FOEDUS_DATA/qot.npz.")

    def figure(self, options: Options) -> None:
        self.calls.append("three")
        if self.interrupted:
            raise KeyboardInterrupt
        options.keep("three.svg", SVG)


def options(out: Path, seed: int = 0) -> Options:
    return Options(trials=None, seed=seed, quick=True, out=out, echo=lambda line: None)


def test_one_page_shows_every_experiment_and_says_what_was_left_out(tmp_path):
    papers = Papers()
    page = reproduce_all(papers.experiments, options(tmp_path)).read_text()
    assert papers.calls == ["one", "two", "three"]
    assert "printed 1.744, ours &lt;1.745&gt;" in page
    assert "Table &lt;1&gt;" in page
    assert "left out: the data set &#39;qot&#39; is expected in $FOEDUS_DATA/qot.npz." in page
    assert page.count("<img ") == 1
    assert "written:" not in page
    assert Reader(page).open == []
    assert not re.search(r"https?://(?!www.w3.org)", page)


def test_a_table_is_a_table_and_nothing_is_cut(tmp_path):
    papers = Papers()
    page = reproduce_all(papers.experiments, options(tmp_path)).read_text()
    assert "13 &amp; more</td>" in page
    assert page.count("<pre>") == 1, "lines of text stay lines, and wrap"


def test_every_paper_is_one_part_of_the_page_so_that_its_menu_fits():
    assert len({name.split("-")[0] for name in EXPERIMENTS}) == 4


def test_a_second_call_makes_only_what_is_missing(tmp_path):
    papers = Papers()
    first = reproduce_all(papers.experiments, options(tmp_path)).read_text()
    papers.calls.clear()
    again = reproduce_all(papers.experiments, options(tmp_path)).read_text()
    assert papers.calls == ["two"], "data that were missing may have come"
    assert again.split('<section id="one">')[1] == first.split('<section id="one">')[1]


@pytest.mark.parametrize("attack", ["another seed", "torn record", "lost picture", "record of another version"])
def test_a_record_that_does_not_fit_is_not_believed(tmp_path, attack):
    papers = Papers()
    reproduce_all(papers.experiments, options(tmp_path))
    papers.calls.clear()
    record = tmp_path / "three.record.json"
    if attack == "torn record":
        record.write_text(record.read_text()[:40])
    elif attack == "lost picture":
        (tmp_path / "three.svg").unlink()
    elif attack == "record of another version":
        content = json.loads(record.read_text())
        content["settings"]["versions"] = {"foedus": "0.1.0"}
        record.write_text(json.dumps(content))
    reproduce_all(papers.experiments, options(tmp_path, seed=1 if attack == "another seed" else 0))
    assert "three" in papers.calls


def test_an_interrupted_series_keeps_what_it_has_and_goes_on(tmp_path):
    papers = Papers()
    papers.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        reproduce_all(papers.experiments, options(tmp_path))
    assert "2 of 3 experiments" in (tmp_path / PAGE).read_text()
    papers.interrupted = False
    papers.calls.clear()
    page = reproduce_all(papers.experiments, options(tmp_path)).read_text()
    assert papers.calls == ["two", "three"]
    assert "3 of 3 experiments" in page


def test_every_experiment_says_how_long_it_takes_in_full():
    assert COSTS.keys() == EXPERIMENTS.keys()
    assert COSTS["fedgia-fig2"].sentence() == (
        "in full about 20 min of a processor (computed from four of its five numbers of clients, 974 seconds)"
    )
