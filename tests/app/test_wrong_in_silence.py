"""What went wrong without a word: sites that disappear, equal partitions, names that are paths, promises left out."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import foedus as fd
from foedus.app import cli
from foedus.app.experiment import starter
from foedus.app.experiment.file import load
from foedus.app.experiment.remote import place_data
from foedus.app.experiment.screen import Screen
from foedus.app.experiment.sources import cohort_of
from foedus.app.report.card import card
from foedus.base.errors import FoedusError
from foedus.federation.flare.kits import SITE_TEMPLATE
from foedus.federation.policy import SITE_FILE, SiteFile

STUDY = """\
{top}
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
{data}
[algorithm]
name = "auto"
{rest}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospitals").mkdir()
    for name, text in starter.hospitals().items():
        (tmp_path / f"hospitals/{name}.csv").write_text(text)
    return tmp_path


def study(folder: Path, top: str = "", data: str = "", rest: str = "") -> Path:
    path = folder / "study.toml"
    path.write_text(STUDY.format(top=top, data=data, rest=rest))
    return path


@pytest.mark.parametrize("kind", ["a link to nothing", "a folder"])
def test_a_pattern_that_matches_something_unreadable_is_refused(kind: str, folder: Path, capsys):
    path = folder / "hospitals/aachen.csv"
    path.mkdir() if kind == "a folder" else path.symlink_to(folder / "moved.csv")
    study(folder)
    assert cli.run(["check", "study.toml"]) == 2
    told = capsys.readouterr().err
    assert "aachen.csv" in told
    assert kind in told
    assert told.count("\n") == 1


class Lines(Screen):
    """A screen that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__("quiet", Console())
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def federation(folder: Path, sites: int) -> Any:
    names = tuple(f"site-{k}" for k in range(1, sites + 1))
    for name in names:
        (folder / f"kits/{name}/local").mkdir(parents=True)
        (folder / f"kits/{name}/local" / SITE_FILE).write_text(SITE_TEMPLATE)
    return SimpleNamespace(sites=names, kit=lambda name: folder / "kits" / name)


def table_at(folder: Path, site: str) -> Path:
    source = SiteFile.read(folder / f"kits/{site}/local" / SITE_FILE).data
    assert source is not None
    return source.file


def test_a_submission_places_its_own_files_anew_and_lists_them(folder: Path):
    there, screen = federation(folder, 4), Lines()
    place_data(load(study(folder)), there, screen)
    assert [table_at(folder, site).stem for site in there.sites] == ["city", "lakeside", "st-mary", "valley"]
    assert screen.lines[0].endswith("city.csv.")
    assert len(screen.lines) == 5  # the last one says what the policy of a trial allows
    (folder / "hospitals/city.csv").rename(folder / "hospitals/aachen.csv")
    place_data(load(study(folder)), there, screen)
    assert table_at(folder, "site-1").stem == "aachen"


def test_more_files_than_sites_are_refused_also_where_the_sites_have_data(folder: Path):
    there = federation(folder, 3)
    moved = folder / "valley.csv"
    (folder / "hospitals/valley.csv").rename(moved)
    place_data(load(study(folder)), there, Lines())
    moved.rename(folder / "hospitals/valley.csv")
    with pytest.raises(FoedusError, match=r"names 4 files \(city, lakeside, st-mary, valley\).* has 3 sites"):
        place_data(load(study(folder)), there, Lines())


def test_a_site_file_that_somebody_changed_is_kept_and_told(folder: Path):
    there, screen = federation(folder, 4), Lines()
    place_data(load(study(folder)), there, Lines())
    path = folder / "kits/site-2/local" / SITE_FILE
    path.write_text(path.read_text().replace("lakeside.csv", "other.csv"))
    for site in ("site-1", "site-3", "site-4"):
        own = folder / f"kits/{site}/local" / SITE_FILE
        own.write_text(own.read_text() + "# ours\n")
    place_data(load(study(folder)), there, screen)
    assert table_at(folder, "site-2").stem == "other"
    assert any("site-2 reads" in line and "other.csv" in line for line in screen.lines)


def test_remedies_go_with_the_file_of_their_site(folder: Path):
    there = federation(folder, 4)
    remedies = '[data.sites.city]\nscale.age = 12.0\nmap.smoker."ja \\" so" = "yes"\nrename.AGE = "age"'
    place_data(load(study(folder, data=remedies)), there, Lines())
    source = SiteFile.read(folder / "kits/site-1/local" / SITE_FILE).data
    assert source is not None
    assert source.remedies().scale == {"age": 12.0}
    assert source.remedies().map == {"smoker": {'ja " so': "yes"}}
    assert source.remedies().rename == {"AGE": "age"}


PARTITIONED = """\
seed = [0, 1, 2]
[data]
set = "breast-cancer"
[partition]
num_partitions = 3
{seed}
[algorithm]
name = "auto"
"""


@pytest.mark.parametrize(("line", "different"), [("", 3), ("seed = 7", 1)])
def test_the_partition_follows_the_seed_unless_it_has_one(line: str, different: int, tmp_path: Path):
    path = tmp_path / "study.toml"
    path.write_text(PARTITIONED.format(seed=line))
    dealt = {
        json.dumps([t.numbers.tolist() for t in cohort_of(case.settings, tmp_path).tables.values()])
        for case in load(path).cases
    }
    assert len(dealt) == different


def test_ten_seeds_give_ten_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    text = PARTITIONED.format(seed='method = "dirichlet"\nalpha = 5.0')
    (tmp_path / "study.toml").write_text(text)
    assert cli.run(["run", "study.toml"]) == 0
    objectives = {fd.load(path.parent).objective for path in Path("runs/study").glob("*/run.json")}
    assert len(objectives) == 3
    told = capsys.readouterr().out
    assert "Mean ± standard deviation over the seeds" in told
    assert "about different data" not in told  # each division is a repetition


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "..", "a\\\\b", "c\\u0000"])
def test_a_name_is_no_path(name: str, folder: Path, capsys):
    study(folder, top=f'name = "{name}"')
    before = sorted(folder.parent.rglob("*"))
    assert cli.run(["run", "study.toml"]) == 2
    assert "name = " in capsys.readouterr().err
    assert sorted(folder.parent.rglob("*")) == before


def test_a_feature_that_is_named_twice_is_refused(folder: Path, capsys):
    study(folder, data='features = ["age", "smoker", "age"]')
    assert cli.run(["check", "study.toml"]) == 2
    assert "features names 'age' twice" in capsys.readouterr().err
    with pytest.raises(FoedusError, match="features names 'a' twice"):
        fd.data.prepare({"north": {"a": [1.0, 2.0], "y": [0, 1]}}, label="y", features=["a", "a"])


def test_columns_whose_names_look_the_same_are_told_apart(folder: Path, capsys):
    path = folder / "hospitals/valley.csv"
    path.write_text(path.read_text().replace("smoker", "smo\u200bker", 1))
    study(folder)
    assert cli.run(["check", "study.toml"]) == 2
    told = capsys.readouterr().err
    assert "valley.csv" in told
    assert r"smo\u200bker" in told


BOUNDS = "\n".join(
    f"{name} = [0, {high}]"
    for name, high in (("age", 100), ("blood_pressure", 250), ("creatinine", 5), ("previous_stays", 9))
)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("[privacy]\nepsilon = 1e-9\ndelta = 1e-5", ("[privacy] epsilon", "1e-9", "times as long")),
        (
            "[preprocess]\nepsilon = 1e-9\n[preprocess.bounds]\n" + BOUNDS,
            ("[preprocess] epsilon", "1e-9", "360"),
        ),
    ],
    ids=["training", "preparation"],
)
def test_an_epsilon_that_drowns_everything_is_doubted(rest: str, words: tuple[str, ...], folder: Path, capsys):
    path = study(folder, rest=rest)
    features = 'features = ["age", "blood_pressure", "creatinine", "previous_stays"]\n[algorithm]'
    path.write_text(path.read_text().replace("[algorithm]", features).replace('"auto"', '"FedAvg"'))
    assert cli.run(["check", "study.toml"]) == 0
    told = capsys.readouterr().out
    assert "look at these first" in told
    assert all(word in told.partition("study.toml:")[0] for word in words)
    path.write_text(path.read_text().replace("1e-9", "50.0"))
    assert cli.run(["check", "study.toml"]) == 0
    assert "everything fits" in capsys.readouterr().out


# the promise about misses

MISSES = '[[constraints]]\ntype = "MissRate"\nat_most = 0.25\nconfidence = 0.9\nholdout = 0.4'
PROMISE = "Miss rate at most 0.25 with confidence 0.9, at every site."


def test_the_promise_about_misses_stands_in_print_headline_and_card(folder: Path, capsys):
    study(folder, rest=MISSES)
    assert cli.run(["run", "study.toml"]) == 0
    printed = capsys.readouterr().out
    run = fd.load(folder / "runs/study")
    assert run.decision is not None
    probability = f"a predicted probability of {100 / (1 + np.exp(-run.decision.cut)):.1f} %"
    page = (folder / "runs/study/report.html").read_text()
    texts = {"print": printed, "page": page[page.index("<h1") :], "card": card("study", run)}
    for what, text in texts.items():
        assert PROMISE in text, what
        assert probability in text, what
        assert "No constraints were set" not in text, what
        assert "No promise is made" not in text, what


def test_a_saved_estimator_keeps_its_threshold(tmp_path: Path):
    draw = np.random.default_rng(3)
    X = draw.normal(size=(600, 2))
    y = np.where(X[:, 0] + draw.normal(size=600) > 0.3, "ill", "well")
    sites = np.repeat(["north", "south"], 300)
    model = fd.NeymanPearsonClassifier(None, max_miss_rate=0.2, confidence=0.9, pos_label="ill", holdout=0.4)
    model.fit(X, y, sites=sites)
    run = fd.load(model.run_.save(tmp_path / "run"))
    rows = np.column_stack([X, np.ones(len(X))])
    assert np.array_equal(run.predict(rows) == 1.0, model.predict(X) == "ill")
    assert "Miss rate at most 0.2 with confidence 0.9, at every site." in str(run)
    assert run.decision is not None
    assert model.calibration_ is not None
    assert run.decision.cut == model.calibration_.cut
