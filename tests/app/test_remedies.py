"""The remedies that `foedus check` offers: one consistent set, toward the usual words, which --fix writes."""

import tomllib
from pathlib import Path

import messy_hearts
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foedus as fd
from foedus.app import cli
from foedus.data.columns import Words
from foedus.data.doubts import Doubt, doubts, toml_key
from foedus.data.sites import Roles, gather
from foedus.data.tables import Table

YES, NO = ("yes", "YES", "Yes.", "ja", "true", "1"), ("no", "NO", "No.", "nein", "false", "0")


def lines_of(doubt: Doubt) -> dict[str, dict[str, str]]:
    return tomllib.loads("\n".join(doubt.remedy)).get("map", {})


@given(
    st.lists(st.tuples(st.sampled_from(range(6)), st.integers(10, 60)), min_size=2, max_size=5),
    st.sampled_from([*YES, None]),
)
@settings(max_examples=40, deadline=None)
def test_remedies_do_not_contradict_each_other(sites: list[tuple[int, int]], positive: str | None):
    """No word is both a goal and renamed, `positive` is never renamed, and after the remedies one pair is left."""
    tables = {}
    for place, (kind, rows) in enumerate(sites):
        cells = [YES[kind] if k % 3 else NO[kind] for k in range(rows)]
        tables[f"site{place}"] = {"x": np.arange(rows) * 0.37 % 1, "ill": Words.of(cells)}
    spoken = {YES[kind] for kind, _ in sites}
    stated = positive if positive in spoken else sorted(spoken)[0]
    held = {s: Table(s, columns, np.arange(len(columns["x"]))) for s, columns in tables.items()}
    results = doubts(gather(held, Roles("ill", stated)))
    changes: dict[str, dict[str, str]] = {}
    for doubt in results:
        for site in doubt.sites if doubt.sure else ():
            changes.setdefault(site, {}).update(lines_of(doubt).get("ill", {}))
    goals = {new for own in changes.values() for new in own.values()}
    renamed = {old for own in changes.values() for old in own}
    assert not goals & renamed
    assert stated not in renamed
    left = {changes.get(site, {}).get(word, word) for site, columns in tables.items() for word in columns["ill"].levels}
    assert len(left) == 2


def test_the_majority_keeps_its_words():
    held = {}
    for place, words in enumerate([("yes", "no")] * 3 + [("YES", "NO"), ("ja", "nein")]):
        cells = [words[k % 2] for k in range(40)]
        held[f"s{place}"] = Table(f"s{place}", {"x": np.arange(40.0) ** 1.1, "smokes": Words.of(cells),
                                                "y": np.arange(40) % 3 % 2 * 1.0}, np.arange(40))  # fmt: skip
    results = [d for d in doubts(gather(held, Roles("y"))) if d.column == "smokes"]
    assert {site for doubt in results for site in doubt.sites} == {"s3", "s4"}
    assert {new for doubt in results for new in lines_of(doubt)["smokes"].values()} == {"yes", "no"}


@pytest.fixture
def clinics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six clinics with a file each in a coding of its own, and later rows of each in the same coding."""
    later = messy_hearts.write(tmp_path)
    (tmp_path / "later").mkdir(exist_ok=True)
    assert len(later) == 6
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_six_messy_files_from_init_to_the_evaluation_of_later_rows(clinics: Path, capsys: pytest.CaptureFixture[str]):
    """Nothing is edited by hand."""
    assert cli.run(["init", "study.toml", "--data", "clinics/*.csv", "--label", "ill", "--positive", "yes"]) == 0
    assert cli.run(["check", "study.toml"]) == 2
    told = capsys.readouterr()
    assert "emden" in told.err
    assert "--fix' writes the lines that are sure" in told.out
    assert cli.run(["check", "study.toml", "--fix"]) == 0
    told = capsys.readouterr().out
    difference = told.partition("Wrote these lines")[0]
    for line in (
        '+[data.sites."bünde"]', '+map.ill.ja = "yes"', '+map.ill.YES = "yes"', "+scale.chol = 38.67",
        '+map.pressure.-999 = ""', '+rename.AGE_YEARS = "age"', '+map.pain.Typical = "typical"',
    ):  # fmt: skip
        assert line in difference
    assert "everything fits" in told
    assert cli.run(["run", "study.toml", "--quiet"]) == 0
    run = fd.load(clinics / "runs/study")
    assert run.certificate.holds()
    assert run.evaluations["held-out rows"]["auc"].value > 0.7
    files = [f"later/{clinic.name}.csv" for clinic in messy_hearts.CLINICS]
    assert cli.run(["evaluate", "runs/study", *files]) == 0
    again = fd.load(clinics / "runs/study")
    assert len(again.evaluations) == 2
    assert again.evaluations["held-out rows"] == run.evaluations["held-out rows"]


def test_what_needs_judgement_is_not_written(clinics: Path, capsys: pytest.CaptureFixture[str]):
    """Labels that are probably swapped are doubted; nobody but the clinic knows."""
    for path in (clinics / "clinics").glob("*.csv"):
        path.write_bytes(
            messy_hearts.CLINICS[0].text(messy_hearts.clean_rows(80, np.random.default_rng(len(path.name))))
        )
    swap = {"yes": "no", "no": "yes"}
    rows = messy_hearts.clean_rows(80, np.random.default_rng(99))
    (clinics / "clinics/fulda.csv").write_bytes(
        messy_hearts.CLINICS[0].text([row | {"ill": swap[row["ill"]]} for row in rows])
    )
    assert cli.run(["init", "study.toml", "--data", "clinics/*.csv", "--label", "ill", "--positive", "yes"]) == 0
    before = (clinics / "study.toml").read_bytes()
    assert cli.run(["check", "study.toml", "--fix"]) == 0
    told = capsys.readouterr().out
    assert "its labels are swapped" in told
    assert "nothing to mend without somebody's judgement" in told
    assert (clinics / "study.toml").read_bytes() == before


def test_lines_go_into_the_section_that_is_there(clinics: Path):
    assert cli.run(["init", "study.toml", "--data", "clinics/*.csv", "--label", "ill", "--positive", "yes"]) == 0
    path = clinics / "study.toml"
    path.write_text(path.read_text() + '\n[ data . sites . "bünde" ]  # theirs\nseparator = ";"\n', encoding="utf-8")
    assert cli.run(["check", "study.toml", "--fix"]) == 0
    sites = tomllib.loads(path.read_text(encoding="utf-8"))["data"]["sites"]
    assert sites["bünde"] == {"separator": ";", "map": {"ill": {"ja": "yes", "nein": "no"}}}
    assert toml_key("bünde") == '"bünde"'


def test_a_file_that_cannot_take_the_lines_stays_as_it_is(clinics: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.run(["init", "study.toml", "--data", "clinics/*.csv", "--label", "ill", "--positive", "yes"]) == 0
    path = clinics / "study.toml"
    text = path.read_text().replace("[preprocess]", "sites.celle.drop = []\n[preprocess]", 1)
    path.write_text(text, encoding="utf-8")
    assert cli.run(["check", "study.toml", "--fix"]) == 2
    assert "write them yourself" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == text
