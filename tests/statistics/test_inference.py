"""Inference from sums over sites of different sizes, against statsmodels on the pooled rows."""

import json

import numpy as np
import pytest
import statsmodels.api as sm

import foedus as fd
from foedus.statistics.coefficients import CoefficientTable

NAMES = ("age", "dose", "smoker", "(intercept)")
EXACT = fd.InteriorPoint(eps1=1e-11)
CLOSE = {"tol": 1e-13, "tol_criterion": "params", "maxiter": 200}
F = sm.families
FAMILIES = {
    "least_squares": (fd.losses.least_squares, F.Gaussian()),
    "logistic": (fd.losses.logistic, F.Binomial()),
    "probit": (fd.losses.probit, F.Binomial(F.links.Probit())),
    "cloglog": (fd.losses.cloglog, F.Binomial(F.links.CLogLog())),
    "poisson": (fd.losses.poisson, F.Poisson()),
    "negative_binomial": (fd.losses.negative_binomial(0.6), F.NegativeBinomial(alpha=0.6)),
    "gamma": (fd.losses.gamma, F.Gamma(F.links.Log())),
    "tweedie": (fd.losses.tweedie(1.5), F.Tweedie(var_power=1.5)),
}


def cohort(loss: str, seed: int) -> tuple[dict, np.ndarray, np.ndarray, dict]:
    """Sites of different sizes, their pooled rows, and a ward for each row."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(25, 160, size=draw.integers(2, 6))
    sites, wards, truth = {}, {}, draw.normal(size=4) * 0.4
    for i, n in enumerate(sizes):
        X = np.column_stack([draw.normal(size=(n, 2)), draw.random(n) < 0.4, np.ones(n)])
        z = X @ truth + 0.1 * draw.normal()
        mean = np.exp(z)
        if loss in ("logistic", "probit", "cloglog"):
            y = (draw.random(n) < 1 / (1 + np.exp(-z))).astype(float)
        elif loss == "least_squares":
            y = z + draw.normal(size=n) * (1 + 0.5 * np.abs(X[:, 0]))
        elif loss == "gamma":
            y = draw.gamma(2.0, mean / 2.0)
        elif loss == "tweedie":
            y = np.array([draw.gamma(2.0, 0.5, size=k).sum() for k in draw.poisson(mean)])
        else:
            y = draw.poisson(mean * (draw.gamma(2.0, 0.5, size=n) if loss == "negative_binomial" else 1.0)).astype(
                float
            )
        sites[f"site {i}"], wards[f"site {i}"] = (X, y), draw.integers(0, 9, size=n)
    X, y = (np.concatenate([part[k] for part in sites.values()]) for k in (0, 1))
    return sites, X, y, wards


def fitted(loss: str, seed: int):
    sites, X, y, wards = cohort(loss, seed)
    problem = fd.Problem(sites, loss=FAMILIES[loss][0], weights="rows")
    run = fd.solve(problem, EXACT)
    pooled = sm.GLM(y, X, family=FAMILIES[loss][1]).fit(**CLOSE)
    return problem, run, pooled, wards


def close(mine, theirs, size=None, tolerance: float = 1e-8) -> None:
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=0 if size is None else tolerance * np.max(size))


def check_one(loss: str, seed: int) -> None:
    problem, run, pooled, wards = fitted(loss, seed)
    table = run.summary(problem, NAMES)
    close([row.value for row in table.rows], pooled.params, pooled.bse)
    close([row.error for row in table.rows], pooled.bse)
    figures = table.figures
    close(figures.deviance, pooled.deviance)
    close(figures.pearson, pooled.pearson_chi2)
    close(figures.dispersion, pooled.scale)
    if loss == "tweedie":
        assert figures.log_likelihood is None
    else:
        close(figures.log_likelihood, pooled.llf)
        close(figures.aic, pooled.aic)
        close(figures.bic, pooled.bic_llf)
    two = np.eye(4)[:2]
    close(table.wald("age", "dose").statistic, float(pooled.wald_test(two, use_f=False, scalar=True).statistic))
    groups = np.concatenate([100 * i + own for i, own in enumerate(wards.values())])
    for errors, theirs in (
        ("HC0", {"cov_type": "HC0"}),
        ("cluster", {"cov_type": "cluster", "cov_kwds": {"groups": groups}}),
    ):
        again = pooled.model.fit(**CLOSE, **theirs)
        own = run.summary(problem, NAMES, errors=errors, clusters=wards if errors == "cluster" else None)
        close([row.error for row in own.rows], again.bse)
    X = pooled.model.exog
    scores = pooled.model.score_factor(pooled.params, scale=1.0)
    curvature = pooled.model.hessian_factor(pooled.params, scale=1.0, observed=True)
    bread = np.linalg.inv((X * curvature[:, None]).T @ X)
    leverage = curvature * np.sum((X @ bread) * X, axis=1)
    for errors, power in (("HC1", 0), ("HC2", 1), ("HC3", 2)):
        factor = len(X) / (len(X) - 4) if errors == "HC1" else 1.0
        meat = factor * (X * (scores**2 / (1 - leverage) ** power)[:, None]).T @ X
        own = run.summary(problem, NAMES, errors=errors)
        close([row.error for row in own.rows], np.sqrt(np.diag(bread @ meat @ bread)))


@pytest.mark.parametrize(
    "loss", [*list(FAMILIES)[:3], *(pytest.param(one, marks=pytest.mark.slow) for one in list(FAMILIES)[3:])]
)
def test_the_table_is_that_of_the_pooled_fit(loss):
    check_one(loss, 7)


@pytest.mark.slow
@pytest.mark.parametrize("loss", FAMILIES)
def test_two_hundred_random_problems_have_the_table_of_the_pooled_fit(loss):
    for seed in range(25):
        check_one(loss, 1000 + seed)


def test_least_squares_has_the_robust_errors_that_statsmodels_gives():
    problem, run, pooled, _ = fitted("least_squares", 3)
    plain = sm.OLS(pooled.model.endog, pooled.model.exog)
    for errors in ("HC0", "HC1", "HC2", "HC3"):
        close([row.error for row in run.summary(problem, errors=errors).rows], plain.fit(cov_type=errors).bse)
    own, theirs = run.summary(problem, NAMES), plain.fit()
    assert own.titles[3] == "t"
    close([[row.z, row.p, row.low, row.high] for row in own.rows],
          np.column_stack([theirs.tvalues, theirs.pvalues, theirs.conf_int()]), 1.0)  # fmt: skip
    close([own.figures.log_likelihood, own.figures.aic, own.figures.bic], [theirs.llf, theirs.aic, theirs.bic])


@pytest.mark.parametrize("loss", ["logistic", "gamma"])
def test_nested_models_are_tested_in_three_ways(loss):
    problem, run, pooled, _ = fitted(loss, 11)
    table, X, y = run.summary(problem, NAMES), pooled.model.exog, pooled.model.endog
    sites = {name: (np.asarray(problem.client(i)["x"]), np.asarray(problem.client(i)["y"]))
             for i, name in enumerate(problem.names)}  # fmt: skip
    none = fd.constraints.Linear(np.eye(4)[1:3], np.zeros(2), "==")
    held = fd.Problem(sites, loss=FAMILIES[loss][0], weights="rows", constraints=[none])
    under = fd.solve(held, fd.InteriorPoint(eps1=1e-10, eps2=1e-12)).summary(held, NAMES)
    small = sm.GLM(y, X[:, [0, 3]], family=FAMILIES[loss][1]).fit(**CLOSE)
    close([under["age"].error, under["(intercept)"].error], small.bse, tolerance=1e-6)
    assert np.isnan(under["dose"].error)
    assert "with the binding constraints taken as given" in str(under)
    ratio = table.likelihood_ratio(under)
    assert ratio.freedom == 2
    if loss == "logistic":
        close(ratio.statistic, 2 * (pooled.llf - small.llf), tolerance=1e-6)
    padded = np.array([small.params[0], 0.0, 0.0, small.params[1]])
    score = pooled.model.score(padded, scale=small.scale)
    information = pooled.model.hessian(padded, scale=small.scale, observed=False)
    close(under.score().statistic, float(score @ np.linalg.solve(-information, score)), tolerance=1e-5)
    assert under.score().freedom == 2
    with pytest.raises(fd.FoedusError, match="about the equalities that hold"):
        table.score()


def test_under_masks_and_as_json_the_table_is_the_same():
    draw = np.random.default_rng(1)
    sites = {f"s{i}": cohort("poisson", 20)[0]["site 0"] for i in range(2)}
    sites |= {f"t{i}": cohort("poisson", 21 + i)[0]["site 0"] for i in range(3)}
    problem = fd.Problem(sites, loss=fd.losses.poisson, weights="rows")
    wards = {name: draw.integers(0, 5, size=len(y)).tolist() for name, (_, y) in sites.items()}
    plain, masked = fd.solve(problem, EXACT), fd.solve(problem, EXACT, secure=True)
    for errors in ("hessian", "HC3", "cluster"):
        a, b = (run.summary(problem, NAMES, errors=errors, clusters=wards) for run in (plain, masked))
        close([row.error for row in b.rows], [row.error for row in a.rows], tolerance=1e-9)
        close(b.figures.log_likelihood, a.figures.log_likelihood, tolerance=1e-9)
        assert CoefficientTable.from_json(json.loads(json.dumps(a.to_json()))) == a
    assert a.clusters == sum(len({*own}) for own in wards.values())


def test_with_sites_that_weigh_the_same_there_is_no_likelihood():
    sites = cohort("logistic", 4)[0]
    problem = fd.Problem(sites, loss=fd.losses.logistic)
    figures = fd.solve(problem, EXACT).summary(problem).figures
    assert figures.log_likelihood is None
    assert figures.deviance > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"errors": "HC4"}, "must be one of 'hessian', 'HC0'"),
        ({"errors": "cluster"}, "needs clusters=: by client"),
        ({"errors": "cluster", "clusters": {"site 0": [1, 2]}}, "client 'site 0': clusters must have one entry"),
    ],
)
def test_wrong_errors_get_a_sentence(arguments, sentence):
    problem, run, _, _ = fitted("logistic", 7)
    with pytest.raises(fd.FoedusError, match=sentence):
        run.summary(problem, **arguments)
