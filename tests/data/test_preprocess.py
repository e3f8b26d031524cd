"""Federated preprocessing finds what one place with all rows would find, and counts what it sends."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foedus.base.errors import FoedusError
from foedus.data import preprocess, sums
from foedus.data.columns import Words, is_number
from foedus.data.preprocess import Category, Number, Preprocessing
from foedus.data.sites import Cohort, Roles, gather
from foedus.data.tables import Table

NAMES = ("age", "lab")


def site(rows: int, seed: int, *, offset: float = 0.0, missing: bool = True) -> Table:
    draw = np.random.default_rng(seed)
    lab = draw.normal(size=rows) + offset
    if missing:
        lab[::5] = np.nan
    ward = Words.of(draw.choice(["east", "north", "south"][: 1 + seed % 3], rows)).used()
    label = Words.of(np.where(np.arange(rows) % 2 == 0, "yes", "no")).used()
    columns = {"age": draw.normal(60, 12, rows), "lab": lab, "ward": ward, "ill": label}
    return Table(f"site{seed}", columns, np.arange(rows))


def cohort(sites: dict[str, Table] | None = None, **roles: object) -> Cohort:
    given = sites or {f"s{i}": site(20 + 7 * i, i) for i in range(3)}
    return gather(given, Roles("ill", "yes", **roles))  # pyright: ignore[reportArgumentType]


def pooled(held: Cohort, name: str) -> np.ndarray:
    return np.concatenate([t.columns[name] for t in held.tables.values()])


def test_standardising_agrees_with_scikit_learn_on_the_pooled_rows():
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    held = cohort()
    rules = preprocess.fit(held)
    X = np.concatenate([x for x, _ in preprocess.sites_of(held, rules).values()])
    raw = np.column_stack([pooled(held, name) for name in NAMES])
    scaler = StandardScaler().fit(raw)  # leaves missing values out, as here
    expected = scaler.transform(SimpleImputer().fit_transform(raw))
    np.testing.assert_allclose(X[:, :2], expected, atol=1e-12)
    np.testing.assert_array_equal(X[:, -1], 1.0)


def test_min_max_agrees_with_scikit_learn_on_the_pooled_rows():
    from sklearn.preprocessing import MinMaxScaler

    held = cohort(missing="drop")
    rules = preprocess.fit(held, scale="minmax", intercept=False)
    X = np.concatenate([x for x, _ in preprocess.sites_of(held, rules).values()])
    raw = np.column_stack([pooled(held, name) for name in NAMES])
    np.testing.assert_allclose(X[:, :2], MinMaxScaler().fit_transform(raw), atol=1e-12)


def test_vocabularies_agree_with_scikit_learn_on_the_pooled_rows():
    from sklearn.preprocessing import OneHotEncoder

    held = cohort()
    rules = preprocess.fit(held)
    X = np.concatenate([x for x, _ in preprocess.sites_of(held, rules).values()])
    words = [
        t.columns["ward"].levels[c]  # pyright: ignore[reportAttributeAccessIssue]
        for t in held.tables.values()
        for c in t.columns["ward"].codes  # pyright: ignore[reportAttributeAccessIssue]
    ]
    expected = OneHotEncoder(sparse_output=False).fit_transform(np.array(words)[:, None])
    np.testing.assert_array_equal(X[:, 2:5], expected)
    assert rules.names == ["age", "lab", "ward=east", "ward=north", "ward=south", "(intercept)"]


def test_a_large_offset_costs_no_digits():
    held = cohort({f"s{i}": site(50, i, offset=1e9, missing=False) for i in range(3)})
    (_, lab, *_) = preprocess.fit(held).columns
    assert isinstance(lab, Number)
    assert lab.scale == pytest.approx(np.std(pooled(held, "lab")), rel=1e-6)


def test_who_holds_the_rows_does_not_matter():
    whole = site(60, 2)
    parts = {"a": whole.take(np.arange(13)), "b": whole.take(np.arange(13, 60))}
    one, two = preprocess.fit(cohort({"all": whole})), preprocess.fit(cohort(parts))
    for a, b in zip(one.columns, two.columns, strict=True):
        if isinstance(a, Category):
            assert a == b
        else:
            assert isinstance(b, Number)
            np.testing.assert_allclose([a.shift, a.scale, a.fill], [b.shift, b.scale, b.fill], rtol=1e-13)


def test_every_byte_is_counted():
    held = cohort()
    rules = preprocess.fit(held)
    asked = len("age\nlab\n\n\nward\nill\nage\nlab")
    words = {"s0": "east", "s1": "east\nnorth", "s2": "east\nnorth\nsouth"}
    assert rules.rounds == 1
    assert rules.down == 3 * asked
    first = sum(8 * 4 + len(words[name]) + len("no\nyes") for name in held.tables)  # two counts, two sums, the sets
    assert rules.up == first + 3 * 8 * 2  # and two spreads


def test_what_is_sent_does_not_grow_with_the_rows():
    small, large = (cohort({f"s{i}": site(rows, i) for i in range(3)}) for rows in (30, 300))
    assert preprocess.fit(small).up == preprocess.fit(large).up


def test_stated_bounds_and_words_are_not_asked_about():
    held = cohort()
    rules = preprocess.fit(
        held,
        bounds={"age": (0.0, 120.0), "lab": (-5.0, 5.0)},
        categories={"ward": ("east", "north", "south", "west")},
    )
    assert rules.rounds == 1  # the label's values alone
    assert rules.up == 3 * len("no\nyes")
    age = rules.columns[0]
    assert age == Number("age", 0.0, 120.0, 60.0, ends=(0.0, 120.0))
    assert rules.names[2:6] == ["ward=east", "ward=north", "ward=south", "ward=west"]


def test_kept_rules_prepare_rows_as_before(tmp_path: Path):
    held = cohort()
    rules = preprocess.fit(held)
    path = tmp_path / "preprocessing.json"
    path.write_text(json.dumps(rules.to_json()))
    again = Preprocessing.load(path)
    assert again == rules
    table = held.tables["s2"]
    np.testing.assert_array_equal(again.transform(table), rules.transform(table))


def test_unknown_words_count_as_none_and_are_told():
    rules = preprocess.fit(cohort())
    new = Table(
        "new", {"age": np.array([50.0, 60.0]), "lab": np.zeros(2), "ward": Words.of(["moon", "east"])}, np.arange(2)
    )
    np.testing.assert_array_equal(rules.transform(new)[:, 2:5], [[0, 0, 0], [1, 0, 0]])
    assert rules.strange(new) == [
        "in 1 of 2 rows 'ward' is a word that no site had in training ('moon'); it counts as none"
    ]


def test_missing_words_are_a_category_of_their_own():
    tables_of = {"a": site(12, 1), "b": site(12, 2)}
    codes = np.array(tables_of["a"].columns["ward"].codes)  # pyright: ignore[reportAttributeAccessIssue]
    codes[0] = -1
    levels = tables_of["a"].columns["ward"].levels  # pyright: ignore[reportAttributeAccessIssue]
    tables_of["a"] = Table("a", {**tables_of["a"].columns, "ward": Words(codes, levels)}, np.arange(12))
    held = cohort(tables_of)
    rules = preprocess.fit(held)
    place = rules.names.index("ward=(missing)")
    column = rules.transform(held.tables["a"])[:, place]
    np.testing.assert_array_equal(column, [1.0] + [0.0] * 11)


def test_rows_that_must_not_be_filled_have_no_numbers():
    held = cohort(missing="drop")
    rules = preprocess.fit(held)
    raw = site(10, 0)
    X = rules.transform(raw)
    np.testing.assert_array_equal(np.isnan(X).any(axis=1), np.isnan(raw.columns["lab"]))  # pyright: ignore


def test_the_label_and_group_are_coded_alike_everywhere():
    sites = {
        "a": {"x": np.arange(3.0), "sex": Words.of(["M", "M", "F"]), "y": Words.of(["1", "0", "1"])},
        "b": {"x": np.arange(2.0), "sex": Words.of(["F", "F"]), "y": Words.of(["0", "0"])},
    }
    tables_of = {name: Table(name, columns, np.arange(len(columns["x"]))) for name, columns in sites.items()}
    held = gather(tables_of, Roles("y", group="sex"))
    assert held.labels == ("0", "1")
    assert held.groups == ("F", "M")
    np.testing.assert_array_equal(held.y(held.tables["a"]), [1, 0, 1])
    np.testing.assert_array_equal(held.y(held.tables["b"]), [0, 0])
    np.testing.assert_array_equal(held.group(held.tables["a"]), [1, 1, 0])
    np.testing.assert_array_equal(held.group(held.tables["b"]), [0, 0])
    assert held.features == ("x",)


def test_numbers_that_cannot_be_scaled_are_refused():
    huge = Table("a", {"x": np.array([1e308, -1e308, 1e308]), "y": np.array([0.0, 1.0, 1.0])}, np.arange(3))
    with pytest.raises(FoedusError, match="'x' holds numbers too large"), np.errstate(over="ignore"):
        preprocess.fit(gather({"a": huge}, Roles("y")))


def test_damaged_rules_are_refused(tmp_path: Path):
    path = tmp_path / "preprocessing.json"
    for text in ("{", '{"schema": 99, "columns": []}', '{"schema": 1}'):
        path.write_text(text)
        with pytest.raises(FoedusError, match=r"preprocessing\.json"):
            Preprocessing.load(path)


def test_is_number_is_not_pythons():
    assert is_number("1e-3")
    assert not is_number("1_000")


STATED = {
    "bounds": {"age": (0.0, 120.0), "lab": (-5.0, 5.0)},
    "categories": {"ward": ("east", "north", "south")},
}


def test_noisy_sums_tend_to_the_exact_ones():
    held = cohort({f"s{i}": site(400, i) for i in range(3)})
    exact = preprocess.fit(held)
    close = preprocess.fit(held, **STATED, epsilon=1e9)
    rough = preprocess.fit(held, **STATED, epsilon=1.0)
    errors = []
    for a, b, c in zip(exact.columns[:2], close.columns[:2], rough.columns[:2], strict=True):
        assert isinstance(a, Number)
        assert isinstance(b, Number)
        assert isinstance(c, Number)
        np.testing.assert_allclose([b.shift, b.scale], [a.shift, a.scale], rtol=1e-5, atol=1e-6)
        errors.append(abs(c.shift - a.shift) / a.scale)
    assert max(errors) > 1e-3  # noise there is
    assert (rough.epsilon, exact.epsilon, rough.rounds) == (1.0, None, 2)
    assert rough.up == close.up


def test_the_noise_has_the_stated_scale():
    """Each figure of a site is Laplace with scale sensitivity·figures/ε: E|noise| is that scale."""
    (noise,) = sums.noises(["site"], {"x": (10.0, 30.0)}, 0.5, 3, seed=0).values()
    assert noise is not None
    table = Table("t", {"x": np.full(50, 20.0)}, np.arange(50))
    drawn = [noise.first(table, sums.FiguresRequest(("x",), (), ())) for _ in range(4000)]
    count = np.array([d.count["x"] for d in drawn]) - 50
    assert np.mean(np.abs(count)) == pytest.approx(1.0 * 3 / 0.5, rel=0.06)
    # the part of the sum above low·count, which is what is released
    rest = np.array([d.total["x"] - 10.0 * d.count["x"] for d in drawn]) - 500
    assert np.mean(np.abs(rest)) == pytest.approx(20.0 * 3 / 0.5, rel=0.06)
    squares = np.array([noise.second(table, {"x": 15.0})["x"] for _ in range(4000)]) - 50 * 5.0**2
    assert np.mean(np.abs(squares)) == pytest.approx(15.0**2 * 3 / 0.5, rel=0.06)


def test_replacing_a_row_changes_figures_by_no_more_than_is_assumed():
    draw = np.random.default_rng(1)
    noise = sums.FigureNoise({"x": (10.0, 30.0)}, 1.0, 1, lambda value, scale: value)
    ask = sums.FiguresRequest(("x",), (), ())
    mean = 14.0
    for _ in range(50):
        x = draw.normal(20, 20, 8)
        other = x.copy()
        other[3] = draw.choice([np.nan, -1e6, 1e6, draw.normal(20, 20)])
        pair = [Table("t", {"x": values}, np.arange(8)) for values in (x, other)]
        a, b = (noise.first(table, ask) for table in pair)
        assert abs(a.count["x"] - b.count["x"]) <= 1
        above = [s.total["x"] - 10.0 * s.count["x"] for s in (a, b)]
        assert abs(above[0] - above[1]) <= 20.0 + 1e-9
        second = [noise.second(table, {"x": mean})["x"] for table in pair]
        assert abs(second[0] - second[1]) <= 16.0**2 + 1e-9


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bounds": {"age": (0.0, 120.0)}, "categories": STATED["categories"]}, "bounds .* 'lab'"),
        ({"bounds": STATED["bounds"]}, "categories .* 'ward'"),
        ({**STATED, "scale": "minmax"}, "scale = 'standard'"),
    ],
)
def test_privacy_needs_what_it_is_calibrated_to(settings, words):
    with pytest.raises(FoedusError, match=words):
        preprocess.fit(cohort(), **settings, epsilon=1.0)


def measured(values: np.ndarray, **more: Any) -> preprocess.Number:
    """The rule of one column of numbers, over four sites."""
    parts = np.array_split(values, 4)
    tables = {f"s{i}": Table(f"s{i}", {"v": part, "y": np.arange(len(part)) % 2.0}, np.arange(len(part)))
              for i, part in enumerate(parts)}  # fmt: skip
    (rule,) = preprocess.fit(gather(tables, Roles("y", "1")), **more).columns
    assert isinstance(rule, preprocess.Number)
    return rule


@given(
    st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=8, max_size=60, unique=True),
    st.floats(1e-6, 1e6),
    st.floats(-1e6, 1e6),
)
def test_kept_quantiles_enclose_the_rows_and_no_row_is_far(values, scale, shift):
    column = np.array(values) * scale + shift
    rule = measured(column)
    exact = np.quantile(column, preprocess.QUANTILES)
    slack = 1e-9 * (1 + np.max(np.abs(exact)))
    assert np.all(np.array(rule.quantiles)[:3] <= exact[:3] + slack)
    assert np.all(np.array(rule.quantiles)[4:] >= exact[4:] - slack)
    assert rule.ends is not None
    assert rule.ends[0] <= column.min() + slack
    assert rule.ends[1] >= column.max() - slack
    spread = exact[-2] - exact[1]
    assert np.all(np.abs(np.array(rule.quantiles) - exact) <= 0.26 * spread + slack)  # a unit of 5 where 2 is too small


def test_no_kept_quantile_is_the_value_of_a_row():
    ages = np.random.default_rng(0).normal(55, 9, 200).round(1)
    rule = measured(ages)
    assert rule.quantiles[0] < ages.min()
    assert rule.quantiles[-1] > ages.max()
    assert rule.quantiles[0] % 5 == rule.quantiles[-1] % 5 == 0


def test_one_wrong_cell_does_not_move_the_scale_by_quantiles():
    ages = np.random.default_rng(0).normal(55, 9, 360)
    wrong = ages.copy()
    wrong[7] = 6300.0
    clean, spoilt = (measured(column, scale="quantile") for column in (ages, wrong))
    assert clean.scale == pytest.approx(9, rel=0.15)
    assert spoilt.scale == pytest.approx(clean.scale, rel=0.02)
    assert spoilt.shift == pytest.approx(clean.shift, abs=0.2)
    assert measured(wrong).scale > 30 * measured(ages).scale


def test_quantiles_are_kept_only_where_the_rows_are_in_one_place():
    ages = np.random.default_rng(0).normal(55, 9, 360)
    for more in ({"secure": True}, {"private": True}):
        rule = measured(ages, **more)
        assert rule.quantiles == ()
        assert rule.ends == pytest.approx((ages.mean() - 4 * ages.std(), ages.mean() + 4 * ages.std()))
        with pytest.raises(FoedusError, match="scale = 'quantile' needs the sites' rows in one place"):
            measured(ages, scale="quantile", **more)
    stated = measured(ages, bounds={"v": (0.0, 120.0)}, private=True)
    assert (stated.quantiles, stated.ends) == ((), (0.0, 120.0))
