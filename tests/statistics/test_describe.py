"""describe: Table 1 from sums equals pandas on the pooled rows, and tells nothing about few rows."""

import csv
import io
import itertools
import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foedus as fd
from foedus.app.cli import run
from foedus.statistics.describe import protect


def rows(seed: int, n: int = 300) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    columns = {
        "age": np.where(draw.random(n) < 0.15, np.nan, draw.normal(60, 12, n)),
        "cost": np.exp(draw.normal(5, 2, n)),
        "ward": draw.choice(["A", "B", "C", None], n, p=[0.5, 0.3, 0.15, 0.05]),
        "ill": draw.integers(0, 2, n),
    }
    return pd.DataFrame(columns)


def at_sites(whole: pd.DataFrame, cuts=(0, 140, 200, 250, 300)) -> dict[str, pd.DataFrame]:
    return {f"s{i}": whole.iloc[a:b] for i, (a, b) in enumerate(pairwise(cuts))}


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_all_figures_are_those_of_pandas_on_the_pooled_rows(seed, secure):
    whole = rows(seed)
    told = fd.describe(at_sites(whole), by="ill", least=1, secure=secure, quantiles=(0.05, 0.5, 0.9))
    for name in ("age", "cost"):
        own = whole[name]
        assert told.figure(name, "missing").value == own.isna().sum()
        assert told.figure(name, "mean").value == pytest.approx(own.mean(), rel=1e-13)
        assert told.figure(name, "deviation").value == pytest.approx(own.std(), rel=1e-12)
        for share in (0.05, 0.5, 0.9):
            bracket = told.figure(name, "quantile", level=f"{share:g}")
            assert bracket.value <= own.quantile(share) <= bracket.upper
            # 256 bins over twice the reach of the quantile that is farthest out, and two more for what lies between
            assert bracket.upper - bracket.value <= 4 * 2 * math.sqrt(20) * own.std() / 256
        for group, part in own.groupby(whole["ill"]):
            assert told.figure(name, "mean", group=str(group)).value == pytest.approx(part.mean(), rel=1e-13)
            assert told.figure(name, "deviation", group=str(group)).value == pytest.approx(part.std(), rel=1e-12)
    assert told.figure("ward", "missing").value == whole["ward"].isna().sum()
    for level, n in whole["ward"].value_counts().items():
        assert told.figure("ward", "count", level).value == n
    for (level, group), n in whole.groupby(["ward", "ill"]).size().items():
        assert told.figure("ward", "count", level, str(group)).value == n


def test_under_masks_every_figure_has_the_same_bits():
    sites = at_sites(rows(2))
    plain, masked = (fd.describe(sites, by="ill", least=5, secure=secure) for secure in (False, True))
    assert tuple(one for one in plain.figures if one.site == "") == masked.figures
    assert not any(one.site for one in masked.figures)


def test_differences_are_those_of_the_textbook():
    whole = rows(3)
    sites = at_sites(whole)
    told = fd.describe(sites, least=1)
    for site, own in sites.items():
        rest = whole.drop(own.index)
        pooled = math.sqrt((own["cost"].var() + rest["cost"].var()) / 2)
        expected = (own["cost"].mean() - rest["cost"].mean()) / pooled
        assert told.figure("cost", "difference", site=site).value == pytest.approx(expected, rel=1e-10)
        p, q = ((part["ward"].dropna() == "A").mean() for part in (own, rest))
        expected = (p - q) / math.sqrt((p * (1 - p) + q * (1 - q)) / 2)
        assert told.figure("ward", "difference", "A", site=site).value == pytest.approx(expected, rel=1e-10)
    means = whole["cost"].groupby(np.repeat([0, 1, 2, 3], [140, 60, 50, 50])).transform("mean")
    expected = math.sqrt(((means - whole["cost"].mean()) ** 2).mean()) / whole["cost"].std()
    assert told.figure("cost", "spread").value == pytest.approx(expected, rel=1e-10)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e6, 1e6) | st.integers(0, 3).map(float), max_size=25), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_a_bracket_holds_the_quantile_of_the_rows_that_are_told(parts, least):
    sites = {f"s{i}": {"x": own, "y": [0.0] * len(own)} for i, own in enumerate(parts)}
    told = fd.describe(sites, least=least)
    shown = [
        own for site, own in zip(sites, parts, strict=True) if told.figure("x", "mean", site=site).value is not None
    ]
    assert least > 1 or shown == [own for own in parts if own]
    for share in ("0.25", "0.5", "0.75"):
        bracket = told.figure("x", "quantile", share)
        if not shown:
            assert bracket.value is None
            continue
        exact, size = np.quantile(np.concatenate(shown), float(share)), 1e-9 * np.max(np.abs(np.concatenate(shown)))
        assert bracket.value - size <= exact <= bracket.upper + size
        if least == 1:
            assert math.isfinite(bracket.value)
            assert math.isfinite(bracket.upper)


@pytest.mark.parametrize(("least", "cells", "most"), [(3, 2, 12), (3, 3, 12), (3, 4, 11), (4, 3, 13), (5, 3, 14)])
def test_what_is_withheld_does_not_follow_from_the_rest(least, cells, most):
    """Of all partitions that are told in the same way, a withheld count has more than one value."""
    alike: dict[tuple, list[tuple[int, ...]]] = {}
    for counts in itertools.product(range(most + 1), repeat=cells):
        if least <= sum(counts) <= most:  # a site of fewer rows tells nothing at all
            shown, hidden = protect(np.array(counts), least)
            assert all(h or n == 0 or n >= least for n, h in zip(counts, hidden, strict=True))
            assert all(n == c for n, c, h in zip(shown, counts, hidden, strict=True) if not h)
            alike.setdefault((sum(counts), *shown.tolist(), *hidden.tolist()), []).append(counts)
    for key, partitions in alike.items():
        for place in np.flatnonzero(key[-cells:]):
            assert len({counts[place] for counts in partitions}) > 1, (key, partitions)


def small() -> dict[str, dict[str, object]]:
    """Three sites of 40 rows and one of 3, with each kind of small cell."""
    ward = ["A"] * 20 + ["B"] * 20
    north = {"ward": ["C"] * 3 + ward[3:], "age": [np.nan] * 2 + [50.0 + k for k in range(38)], "died": [0.0] * 40}
    south = {"ward": ward, "age": [60.0 + k for k in range(40)], "died": [1.0] * 3 + [0.0] * 37}
    east = {"ward": ward, "age": [70.0 + k for k in range(40)], "died": [0.0, 1.0] * 20}
    tiny = {"ward": ["A", "A", "B"], "age": [1.0, 2.0, 3.0], "died": [0.0] * 3}
    return {"north": north, "south": south, "east": east, "tiny": tiny}


@pytest.mark.parametrize("secure", [False, True])
def test_small_cells_are_marks_and_no_zeros(secure):
    told = fd.describe(small(), least=5, secure=secure)
    rows, mean, died = told.figure("", "rows"), told.figure("age", "mean"), told.figure("died", "mean")
    assert (rows.value, rows.withheld) == (120, 1)
    # north would tell with the number of ages that two are missing, and south with a sum that three have died
    assert (mean.value, mean.withheld) == (pytest.approx(np.mean([*range(60, 100), *range(70, 110)])), 2)
    assert (died.value, died.withheld) == (pytest.approx(20 / 80), 2)
    missing = told.figure("age", "missing")
    assert (missing.value, missing.withheld) == (None, 2)
    a = told.figure("ward", "count", "A")
    # north's C is a word of three rows, which is not listed; with it goes A, the smallest other cell
    assert (a.value, a.withheld) == (40, 2)
    assert "C" not in told.layout.levels["ward"]
    assert told.figure("ward", "count", "(other words)").value is None
    assert "too few" in str(told)
    assert "≥ 40 †2" in str(told)
    if not secure:
        assert told.figure("age", "mean", site="tiny").value is None
        assert told.figure("age", "mean", site="north").value is None
        assert told.figure("died", "mean", site="south").value is None


def test_a_crosstab_with_a_small_cell_is_withheld_as_a_whole():
    ward = ["A"] * 20 + ["B"] * 20
    sick, well = ["no"] * 19 + ["yes"] + ["no", "yes"] * 10, ["no", "yes"] * 20
    told = fd.describe({"n": {"ward": ward, "sick": sick}, "s": {"ward": ward, "sick": well}}, by="sick")
    cells = {(a, b): told.figure("ward", "count", a, b, "n") for a in "AB" for b in ("no", "yes")}
    assert all(one.value is None and one.withheld for one in cells.values())
    assert told.figure("ward", "count", "A", site="n").value == 20
    assert told.figure("ward", "count", "A", "no").value == 10
    assert told.figure("ward", "count", "A", "no").withheld == 1


def test_the_file_has_every_figure_and_an_empty_cell_where_one_is_withheld():
    told = fd.describe(small())
    table = list(csv.DictReader(io.StringIO(told.to_csv())))
    assert len(table) == len(told.figures)
    empty = [line for line in table if line["value"] == ""]
    assert {line["withheld_by_sites"] for line in empty if line["figure"] in ("mean", "missing")} == {"1", "2"}
    mean = next(line for line in table if (line["column"], line["figure"], line["site"]) == ("age", "mean", ""))
    assert float(mean["value"]) == told.figure("age", "mean").value


def test_wrong_settings_are_told_in_a_sentence():
    with pytest.raises(fd.FoedusError, match="no site has a column 'wart'"):
        fd.describe(small(), by="wart")
    with pytest.raises(fd.FoedusError, match="'least' of describe"):
        fd.describe(small(), least=0)
    with pytest.raises(fd.FoedusError, match="'quantiles' of describe"):
        fd.describe(small(), quantiles=(1.5,))
    with pytest.raises(fd.FoedusError, match="'x' is infinite"):
        fd.describe({"a": {"x": [np.inf, 1.0], "y": [0, 1]}})
    with pytest.raises(fd.FoedusError, match="at least 4 sites"):
        fd.describe({"a": {"x": [1.0]}}, secure=True)


def test_a_column_of_words_at_one_site_and_numbers_at_another_is_named():
    told = fd.describe({"a": {"x": ["1", "low"] * 10}, "b": {"x": [1.0, 2.0] * 10}})
    assert told.of_two_kinds == ("x",)
    assert told.figure("x", "count", "1").value == 20


def experiment_file(folder, **more: str):
    for site, own in at_sites(rows(4)).items():
        own.to_csv(folder / f"{site}.csv", index=False)
    lines = ['[data]\nfiles = "s*.csv"\nlabel = "ill"\n', *(f"[{key}]\n{value}\n" for key, value in more.items())]
    (folder / "e.toml").write_text("".join(lines))
    return folder / "e.toml"


def test_the_command_prints_the_table_and_writes_it(tmp_path, capsys):
    file = experiment_file(tmp_path)
    assert run(["describe", str(file), "--by", "ill", "--out", str(tmp_path / "t.csv")]) == 0
    printed = capsys.readouterr().out
    assert "ward = A | ill = 1" in printed
    expected = fd.describe(at_sites(rows(4)), by="ill", categorical=["ill"])
    own = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    mean = next(line for line in own if (line["column"], line["figure"], line["site"]) == ("cost", "mean", "s2"))
    assert float(mean["value"]) == pytest.approx(expected.figure("cost", "mean", site="s2").value, rel=1e-12)
    assert run(["describe", str(file), "--out", str(tmp_path / "t.html")]) == 0
    page = (tmp_path / "t.html").read_text()
    assert "age, median" in page
    assert "ward = A" in page


def test_the_command_shows_sums_alone_where_the_file_says_secure_and_refuses_other_endings(tmp_path, capsys):
    file = experiment_file(tmp_path, run="secure = true")
    assert run(["describe", str(file)]) == 0
    assert "s0" not in capsys.readouterr().out.splitlines()[0]
    assert run(["describe", str(file), "--out", str(tmp_path / "t.pdf")]) == 2
    assert "expected a name that ends in .csv or .html" in capsys.readouterr().err
