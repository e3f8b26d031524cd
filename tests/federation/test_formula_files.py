"""A formula in an experiment file: the same columns in a simulation, over messages and under masks."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from formulaic import model_matrix
from masked_wards import POLICY
from test_summaries import same, simulated, submitted
from uneven_wards import BY_ROWS, UnevenMaskedWard, UnevenWard

import foedus as fd
from foedus.app.experiment import build, file
from foedus.data.preprocess import Preprocessing
from foedus.federation import preparation
from foedus.federation.exchange import Missing, Paused

RIGHT = (
    "age*smoker + C(ward, ref='surgery') + center(creatinine) "
    "+ bs(blood_pressure, knots=[140], lower_bound=80, upper_bound=220, extrapolation='clip')"
)
STUDY = (
    BY_ROWS.replace('name = "InteriorPoint"', 'name = "InteriorPoint"\neps1 = 1e-10')
    .replace('penalty = { name = "Ridge", mu = 0.1 }\n', f'formula = "readmitted ~ {RIGHT}"\n')
    .replace('group = "sex"\n', "")
) + '[summary]\nerrors = "HC0"\n'
SECURE = STUDY.replace("[run]\n", "[run]\nsecure = true\n")


def pooled_fit(ward):
    tables = [pd.read_csv(ward.folder / f"hospitals/{name}.csv") for name in ward.names]
    rows = pd.concat(tables, ignore_index=True).dropna()
    y = (rows.readmitted.astype(str) == ward.cohort.labels[1]).astype(float)
    X = model_matrix(RIGHT.replace("ref='surgery'", "contr.treatment('surgery')"), rows)
    return sm.GLM(y, X, family=sm.families.Binomial()).fit(tol=1e-13, tol_criterion="params", cov_type="HC0")


def test_over_messages_the_table_is_that_of_the_pooled_rows(tmp_path):
    ward = UnevenWard(tmp_path, STUDY.replace("[data]\n", '[data]\nmissing = "drop"\n'))
    run, pooled = submitted(ward), pooled_fit(ward)
    table = run.summary()
    names = [name.replace("contr.treatment('surgery')", "ref='surgery'") for name in pooled.params.index]
    for name, value, error in zip(names, pooled.params, pooled.bse, strict=True):
        row = table["(intercept)" if name == "Intercept" else name]
        assert (row.value, row.error) == pytest.approx((value, error), rel=1e-6)
    same(run, simulated(ward))


@pytest.mark.slow
def test_under_masks_the_columns_are_the_same(tmp_path):
    pytest.importorskip("cryptography")
    ward = UnevenMaskedWard(tmp_path, SECURE, POLICY)
    same(submitted(ward), simulated(ward))


def test_rules_with_another_formula_than_the_plan_are_refused(tmp_path, monkeypatch):
    """A server that sends the rules could otherwise ask for gradients of columns that nobody has approved."""
    ward = UnevenWard(tmp_path, STUDY)
    plain = preparation.settle
    forged = lambda *arguments: replace(plain(*arguments), formula="readmitted ~ age")  # noqa: E731
    monkeypatch.setattr(preparation, "settle", forged)
    with pytest.raises((Missing, Paused)):
        ward.play()
    assert any("the rules have another formula than the plan" in note for note in ward.notes)


def test_new_rows_get_the_columns_of_the_formula(tmp_path):
    ward = UnevenWard(tmp_path, STUDY)
    rules = build.rules_of(ward.case.settings, ward.cohort)
    again = Preprocessing.from_json(json.loads(json.dumps(rules.to_json())))
    table = ward.cohort.tables[ward.names[0]]
    assert np.array_equal(again.transform(table), rules.transform(table))
    assert again.names[-1] == "(intercept)"
    some = table.take(np.array([5]))  # whose words are few
    assert np.array_equal(again.transform(some)[0], rules.transform(table)[5])


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("readmitted ~", "age ~", "the left side must be the label 'readmitted'"),
        ("center(creatinine)", "offset(creatinine)", "an offset is not known in an experiment file"),
        ("[data]\n", '[data]\nfeatures = ["age"]\n', r"\[data\] features: the formula in \[problem\] says"),
        ("age*smoker", "open(age)", "there is no function 'open'"),
        ("[run]\n", "[privacy]\nepsilon = 1.0\n[run]\n", "does not go with|would send exact sums"),
    ],
)
def test_a_wrong_formula_in_a_file_gets_a_sentence(tmp_path, old, new, sentence):
    assert old in STUDY
    (tmp_path / "study.toml").write_text(STUDY.replace(old, new))
    with pytest.raises(fd.FoedusError, match=sentence):
        file.load(tmp_path / "study.toml")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("knots=[140], ", "df=4, ", "bs states its knots, lower_bound and upper_bound"),
        ("center(creatinine)", "poly(creatinine, 2)", "what it learns is not asked for in an experiment file"),
        ("ref='surgery'", "ref='surgeon'", "has no level 'surgeon'"),
        ("~ age", "~ 0 + age", "do not agree on a constant"),
    ],
)
def test_what_a_formula_cannot_learn_over_sites_gets_a_sentence(tmp_path, old, new, sentence):
    assert old in STUDY
    ward = UnevenWard(tmp_path, STUDY.replace(old, new))
    with pytest.raises(fd.FoedusError, match=sentence):
        build.rules_of(ward.case.settings, ward.cohort)
