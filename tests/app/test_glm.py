"""fd.glm against statsmodels on the pooled rows: formulas, offsets, weights, families, and what goes wrong."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from formulaic import model_matrix
from statsmodels.miscmodels.ordinal_model import OrderedModel

import foedus as fd

F = sm.families
CLOSE = {"tol": 1e-13, "tol_criterion": "params", "maxiter": 300}
RIGHT = "x*ward + bs(age, df=4)"
CASES = {
    "gaussian": (F.Gaussian(), {}),
    "binomial": (F.Binomial(), {}),
    "probit": (F.Binomial(F.links.Probit()), {"link": "probit"}),
    "poisson": (F.Poisson(), {}),
    "gamma": (F.Gamma(F.links.Log()), {}),
    "tweedie": (F.Tweedie(var_power=1.3), {"power": 1.3}),
    "negative_binomial": (F.NegativeBinomial(alpha=0.5), {"alpha": 0.5}),
}


def cohort(seed: int = 0, n: int = 400) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    d = pd.DataFrame({"x": draw.normal(size=n), "age": draw.uniform(20, 90, n), "days": draw.integers(5, 60, n)})
    d["ward"], d["wt"], d["doctor"] = draw.choice(list("ABC"), n), draw.integers(1, 4, n), draw.integers(0, 8, n)
    mean = np.exp(0.3 * d.x + 0.4 * (d.ward == "B") + 0.01 * (d.age - 50) + np.log(d.days / 20))
    d["poisson"] = draw.poisson(mean)
    d["negative_binomial"] = draw.poisson(mean * draw.gamma(2.0, 0.5, n))
    d["binomial"] = d["probit"] = (draw.random(n) < mean / (1 + mean)).astype(int)
    d["gamma"], d["gaussian"] = 1e3 * draw.gamma(2.0, mean), 1e3 * mean + 300 * draw.normal(size=n)
    d["tweedie"] = d["gamma"] * d["binomial"]
    return d


def split(d: pd.DataFrame, cuts=(0, 150, 190, 260, 400)) -> dict[str, pd.DataFrame]:
    return {f"s{i}": d.iloc[a:b] for i, (a, b) in enumerate(pairwise(cuts))}


def same(fit, pooled, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose([row.value for row in fit.table.rows], pooled.params, rtol=tolerance)
    np.testing.assert_allclose([row.error for row in fit.table.rows], pooled.bse, rtol=tolerance)


@pytest.mark.parametrize("family", CASES)
def test_the_fit_is_that_of_the_pooled_rows(family):
    d, (theirs, settings) = cohort(), CASES[family]
    name = "binomial" if family == "probit" else family
    fit = fd.glm(f"{family} ~ {RIGHT} + offset(log(days))", split(d), name, weights="wt", **settings)
    X = model_matrix(RIGHT, d)
    pooled = sm.GLM(d[family], X, family=theirs, offset=np.log(d.days), var_weights=d.wt).fit(**CLOSE)
    same(fit, pooled)
    assert fit.rounds <= 12
    assert fit.run.certificate.holds()
    np.testing.assert_allclose(fit.table.figures.deviance, pooled.deviance, rtol=1e-9)


@pytest.mark.slow
def test_the_dispersion_of_counts_is_that_of_the_largest_likelihood():
    d = cohort(2)
    fit = fd.glm("negative_binomial ~ x + C(ward, ref='B') + offset(log(days))", split(d), "negative_binomial")
    X = model_matrix("x + C(ward, contr.treatment('B'))", d).to_numpy()
    joint = sm.NegativeBinomial(d.negative_binomial.to_numpy(float), X, offset=np.log(d.days.to_numpy()))
    joint = joint.fit(method="newton", maxiter=200, disp=0, tol=1e-12)
    np.testing.assert_allclose([*(row.value for row in fit.table.rows), fit.alpha], joint.params, rtol=1e-7)
    np.testing.assert_allclose([fit.table.figures.log_likelihood, fit.table.figures.aic], [joint.llf, joint.aic])
    assert f"alpha {fit.alpha:.6g}" in str(fit)


def graded(d: pd.DataFrame) -> pd.DataFrame:
    draw = np.random.default_rng(9)
    latent = d.x - 0.02 * d.age + 0.8 * (d.ward == "B") + draw.logistic(size=len(d))
    return d.assign(grade=np.array(["mild", "severe", "fatal"])[np.digitize(latent, [-1.0, 0.5])])


@pytest.mark.slow
def test_a_class_among_several_has_the_table_of_statsmodels():
    d = graded(cohort(7))
    levels = ["mild", "severe", "fatal"]
    fit = fd.glm("grade ~ x + age + ward", split(d), "multinomial", levels=levels)
    codes = d.grade.map({level: k for k, level in enumerate(levels)})
    model = sm.MNLogit(codes, model_matrix("x + age + ward", d))
    theirs = model.fit(method="newton", disp=0, tol=1e-14)
    np.testing.assert_allclose([row.value for row in fit.table.rows], np.ravel(theirs.params), rtol=1e-6)
    np.testing.assert_allclose([row.error for row in fit.table.rows], np.ravel(theirs.bse), rtol=1e-6)
    np.testing.assert_allclose(fit.table.figures.log_likelihood, theirs.llf, rtol=1e-9)
    assert fit["fatal: x"].value == pytest.approx(theirs.params.iloc[1, 1], rel=1e-6)
    assert fit.rounds <= 12
    robust = model.fit(method="newton", disp=0, tol=1e-14, cov_type="HC0")
    np.testing.assert_allclose([row.error for row in fit.summary("HC0").rows], np.ravel(robust.bse), rtol=1e-6)


@pytest.mark.slow
def test_a_class_in_an_order_has_the_table_of_statsmodels():
    d = graded(cohort(8))
    fit = fd.glm("grade ~ x + age + ward", split(d), "ordinal", levels=["mild", "severe", "fatal"], secure=True)
    order = pd.Categorical(d.grade, categories=["mild", "severe", "fatal"], ordered=True)
    X = model_matrix("x + age + ward", d).iloc[:, 1:]
    theirs = OrderedModel(pd.Series(order, index=d.index), X, distr="logit")
    theirs = theirs.fit(method="newton", disp=0, tol=1e-14, maxiter=200)
    for name in ("x", "age", "ward[T.B]"):
        assert fit[name].value == pytest.approx(theirs.params[name], rel=1e-6)
        assert fit[name].error == pytest.approx(theirs.bse[name], rel=1e-6)
    cuts = theirs.model.transform_threshold_params(theirs.params)[1:-1]
    np.testing.assert_allclose([fit["up to mild"].value, fit["up to severe"].value], cuts, rtol=1e-6)
    np.testing.assert_allclose(fit.table.figures.log_likelihood, theirs.llf, rtol=1e-9)
    assert fit.rounds <= 12


def test_errors_by_cluster_and_under_masks_are_those_of_the_pooled_rows():
    d = cohort(3)
    X = model_matrix("x + ward", d)
    groups = d.doctor + 100 * np.repeat(np.arange(4), [150, 40, 70, 140])
    pooled = sm.GLM(d.poisson, X, family=F.Poisson()).fit(**CLOSE, cov_type="cluster", cov_kwds={"groups": groups})
    for secure in (False, True):
        fit = fd.glm("poisson ~ x + ward", split(d), "poisson", errors="cluster", cluster="doctor", secure=secure)
        same(fit, pooled, 1e-7)
    assert fit.summary("HC1").errors == "HC1"


def test_a_cap_on_the_loss_of_a_class_holds_and_is_said():
    d = cohort(4)
    cap = fd.constraints.LossCap(fd.label(1), 0.4)
    fit = fd.glm("binomial ~ x + ward", split(d), "binomial", constraints=[cap])
    assert fit.run.certificate.holds()
    assert max(row.value for row in fit.run.certificate.rows) <= 0.4 + 1e-6
    assert "bind" in str(fit)


def test_words_on_the_left_say_which_of_them_counts():
    d = cohort(5)
    d["ill"] = np.where(d.binomial == 1, "yes", "no")
    fit = fd.glm("ill == 'yes' ~ x", split(d), "binomial")
    same(fit, sm.GLM(d.binomial, model_matrix("x", d), family=F.Binomial()).fit(**CLOSE))
    with pytest.raises(fd.FoedusError, match="write ill == 'no' on the left side"):
        fd.glm("ill ~ x", split(d), "binomial")


@pytest.mark.parametrize(
    ("formula", "arguments", "sentence"),
    [
        ("poisson ~ x", {"family": "poison"}, "family must be one of .* Did you mean 'poisson'"),
        ("poisson ~ x", {"family": "poisson", "link": "logit"}, "has the link 'log'. Got 'logit'"),
        ("poisson ~ x + doubled", {"family": "poisson"}, "the columns 'x', 'doubled' are collinear"),
        ("poisson ~ x + flat", {"family": "poisson"}, "the column 'flat' has the same value in every row"),
        ("apart ~ x", {"family": "binomial"}, "the coefficient of 'x' grows without end"),
        ("x ~ ward", {"family": "gamma"}, r"expects numbers > 0"),
        ("poisson ~ x", {"family": "poisson", "alpha": 1.0}, "alpha is the dispersion of a negative binomial"),
        ("poisson ~ x", {"family": "poisson", "weights": "x"}, "the weights in 'x' must be numbers > 0"),
        ("poisson ~ x", {"family": "poisson", "errors": "cluster"}, "go together"),
        ("ward ~ x", {"family": "ordinal", "levels": ["A", "B"]}, "levels must be those of 'ward'"),
        ("ward ~ x", {"family": "ordinal", "weights": "wt"}, "weights are not for a multinomial or an ordinal"),
    ],
)
def test_what_cannot_be_fitted_gets_a_sentence(formula, arguments, sentence):
    d = cohort(6)
    d["doubled"], d["flat"], d["apart"] = 2 * d.x + 1, 7.0, (d.x > 0.1).astype(int)
    with pytest.raises(fd.FoedusError, match=sentence):
        fd.glm(formula, split(d), **arguments)
