"""Formulas over sites: the columns are those that formulaic makes of the pooled rows, to the last digits."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix

import foedus as fd
from foedus.data.formula import Design
from foedus.statistics.formula import learn
from foedus.statistics.survival.rows import tables_of

FORMULAS = (
    "y ~ x + C(ward, ref='B') + bs(x, df=5) + center(log(days)) + x:ward",
    "y ~ ward*k + poly(x, 3) + scale(days) + standardize(x)",
    "y ~ C(k) + I(x**2) + bs(x, knots=[0.5], lower_bound=-60, upper_bound=60)",
    "y ~ x + ward - 1",
    "y ~ C(ward, levels=['C', 'A', 'B'])*x + bs(days, df=4, degree=2, include_intercept=True)",
    "log(days) ~ bs(center(x), df=4)",
)


def rows(seed: int = 0, n: int = 160) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    columns = {"y": draw.normal(size=n), "x": draw.normal(size=n) * 10, "days": draw.random(n) + 1}
    return pd.DataFrame(columns | {"ward": draw.choice(list("ABC"), n), "k": draw.integers(0, 4, n)})


def at_sites(whole: pd.DataFrame, cuts=(0, 50, 63, 100, 160)) -> dict[str, pd.DataFrame]:
    """Four sites of different sizes, of which the second has one ward alone."""
    sites = {f"s{i}": whole.iloc[a:b] for i, (a, b) in enumerate(pairwise(cuts))}
    return sites | {"s1": sites["s1"].assign(ward="A")}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("secure", [False, True])
def test_the_columns_are_those_of_the_pooled_rows(formula, secure):
    sites = at_sites(rows())
    design, here = learn(formula, tables_of(sites), (), secure)
    X, names = zip(*(design.columns_of(own.columns) for own in here.data.values()), strict=True)
    pooled = model_matrix(formula.replace("ref='B'", "contr.treatment('B')"), pd.concat(sites.values())).rhs
    np.testing.assert_allclose(np.concatenate(X), pooled.to_numpy(), rtol=1e-12, atol=1e-12)
    expected = [name.replace("contr.treatment('B')", "ref='B'").replace("Intercept", "(intercept)") for name in pooled]
    assert all(list(own) == expected for own in names)


def test_rows_that_lack_a_value_are_left_out_before_anything_is_learnt():
    whole = rows(3)
    whole.loc[[3, 70], "x"] = np.nan
    whole.loc[[9], "ward"] = None
    design, here = learn("y ~ center(x) + ward", tables_of(at_sites(whole)), (), False)
    complete = pd.concat(at_sites(whole).values()).dropna()
    pooled = model_matrix("y ~ center(x) + ward", complete).rhs
    X = np.concatenate([design.columns_of(own.columns)[0] for own in here.data.values()])
    np.testing.assert_allclose(X, pooled.to_numpy(), rtol=1e-12, atol=1e-12)
    assert sum(own.missing for own in here.data.values()) == len(whole) - len(complete)


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("y", "expected a formula such as"),
        ("y ~ x + (1 | site)", "instead of a term with"),
        ("y ~ x + C(ward, ref='Z')", "the column 'ward' has no level 'Z', only 'A', 'B', 'C'"),
        ("y ~ agee", "no site has a column 'agee'"),
        ("y ~ cr(x, df=3)", "there is no function 'cr', only"),
        ("y ~ bs(x, df=2)", "df must be at least 3"),
        ("y ~ bs(x, df=4, knots=[1])", "give df or knots, and not both"),
        ("y ~ offset(x) + offset(days)", "must have one offset"),
        ("y ~ np.log(x)", "there is no function 'np.log'"),
        ("y ~ x.__class__", "expected names, numbers and arithmetic"),
        ("y ~ log(__import__('os').getpid())", "there is no function .__import__"),
        ("y ~ I([v for v in x])", "expected names, numbers and arithmetic"),
    ],
)
def test_a_wrong_formula_gets_a_sentence(formula, sentence):
    with pytest.raises(fd.FoedusError, match=sentence):
        learn(formula, tables_of(at_sites(rows())), (), False)


def test_a_design_says_what_it_learns_and_which_columns_it_names():
    design = Design("y ~ a*C(b) + center(log(d)) + offset(log(e))")
    assert design.names == ("y", "a", "b", "d", "e")
    assert [step.key for step in design.steps()] == ["center(log(d))"]
    assert design.offset == "log(e)"
    assert design.has_intercept
