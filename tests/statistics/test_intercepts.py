"""Intercepts of sites: fixed ones as with a column for each site, random ones as statsmodels and SciPy have them."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from formulaic import model_matrix
from scipy.optimize import minimize

import foedus as fd

F = sm.families
CLOSE = {"tol": 1e-13, "tol_criterion": "params", "maxiter": 300}


def cohort(seed: int = 0, sites: int = 12, spread: float = 0.7) -> dict[str, pd.DataFrame]:
    draw, parts = np.random.default_rng(seed), {}
    for i in range(sites):
        n = int(draw.integers(20, 60))
        d = pd.DataFrame({"x": draw.normal(size=n) * 3, "age": draw.uniform(20, 80, n), "site": f"s{i}"})
        z = 0.15 * d.x + 0.01 * (d.age - 50) + spread * draw.normal()
        d["y"], d["ill"] = 2 * z + draw.normal(size=n) * 1.5, (draw.random(n) < 1 / (1 + np.exp(-z))).astype(int)
        d["count"] = draw.poisson(np.exp(z))
        parts[f"s{i}"] = d
    return parts


@pytest.mark.parametrize(("family", "y"), [("binomial", "ill"), ("poisson", "count"), ("gaussian", "y")])
@pytest.mark.parametrize("secure", [pytest.param(False, marks=pytest.mark.slow), True])
def test_fixed_intercepts_are_those_of_a_column_for_each_site(family, y, secure):
    parts = cohort()
    fit = fd.glm(f"{y} ~ x + age", parts, family, site_intercepts=True, secure=secure)
    whole = pd.concat(parts.values())
    X = model_matrix("x + age + site", whole)
    pooled = sm.GLM(whole[y].to_numpy(), X, family=getattr(F, family.title())()).fit(**CLOSE)
    for name in ("x", "age"):
        assert fit[name].value == pytest.approx(pooled.params[name], rel=1e-7)
        assert fit[name].error == pytest.approx(pooled.bse[name], rel=1e-7)
    assert fit.rounds <= 12
    assert [row.name for row in fit.table.rows] == ["x", "age"]


def test_a_site_of_one_class_says_nothing_and_is_counted():
    parts = cohort(3)
    parts["s0"] = parts["s0"].assign(ill=1)
    fit = fd.glm("ill ~ x + age", parts, "binomial", site_intercepts=True)
    rest = {name: part for name, part in parts.items() if name != "s0"}
    same = fd.glm("ill ~ x + age", rest, "binomial", site_intercepts=True)
    assert fit.silent == 1
    assert fit["x"].value == pytest.approx(same["x"].value, rel=1e-9)
    assert fit["x"].error == pytest.approx(same["x"].error, rel=1e-9)
    assert "1 sites say nothing" in str(fit)


@pytest.mark.parametrize("secure", [False, True])
def test_random_intercepts_of_numbers_are_those_of_mixedlm(secure):
    parts = cohort(1)
    fit = fd.glm("y ~ x + age", parts, random="site", secure=secure)
    whole = pd.concat(parts.values())
    theirs = sm.MixedLM(whole.y.to_numpy(), model_matrix("x + age", whole).to_numpy(), groups=whole.site.to_numpy())
    theirs = theirs.fit(reml=True, method="bfgs", gtol=1e-13)
    np.testing.assert_allclose([row.value for row in fit.table.rows], theirs.fe_params, rtol=1e-5)
    # their errors come from a numerical Hessian; those of lme4 are σ²(XᵀV⁻¹X)⁻¹
    same = (whole.site.to_numpy()[:, None] == whole.site.to_numpy()).astype(float)
    V = theirs.scale * np.eye(len(whole)) + theirs.cov_re[0, 0] * same
    X = theirs.model.exog
    errors = np.sqrt(np.diag(np.linalg.inv(X.T @ np.linalg.solve(V, X))))
    np.testing.assert_allclose([row.error for row in fit.table.rows], errors, rtol=1e-6)
    np.testing.assert_allclose(errors, theirs.bse_fe, rtol=1e-3)
    np.testing.assert_allclose(fit.log_likelihood, theirs.llf, rtol=1e-7)
    np.testing.assert_allclose([fit.sigma2, fit.tau2], [theirs.scale, theirs.cov_re[0, 0]], rtol=1e-5)
    assert fit.rounds <= 25


def laplace(parts, columns, y, loss):
    """The largest likelihood by Laplace's method, by SciPy with a mode of its own for each site."""

    def negative(p):
        total, tau = 0.0, np.exp(p[-1])
        for d in parts.values():
            A, own, u = np.column_stack([np.ones(len(d)), d[columns]]), d[y].to_numpy(), 0.0
            for _ in range(60):
                _, slope, bend = loss(A @ p[:-1] + tau * u, own)
                u -= (tau * slope.sum() + u) / (tau**2 * bend.sum() + 1)
            value, _, bend = loss(A @ p[:-1] + tau * u, own)
            total += value.sum() + 0.5 * u**2 + 0.5 * np.log(tau**2 * bend.sum() + 1)
        return total

    return minimize(negative, np.append(np.zeros(len(columns) + 1), -0.5), method="BFGS", options={"gtol": 1e-7})


def logistic(z, y):
    p = 1 / (1 + np.exp(-z))
    return np.logaddexp(0, z) - y * z, p - y, p * (1 - p)


@pytest.mark.slow
def test_random_intercepts_of_classes_are_those_of_brute_force():
    parts = {name: part.assign(age=(part.age - 50) / 20) for name, part in cohort(2).items()}
    fit = fd.glm("ill ~ x + age", parts, "binomial", random="site")
    best = laplace(parts, ["x", "age"], "ill", logistic)
    np.testing.assert_allclose([row.value for row in fit.table.rows], best.x[:-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fit.tau2, np.exp(2 * best.x[-1]), rtol=1e-4)
    np.testing.assert_allclose(fit.log_likelihood, -best.fun, rtol=1e-9)
    assert fit.rounds <= 25


def test_where_sites_do_not_differ_the_variance_between_them_is_nothing():
    parts = cohort(4, spread=0.0)
    whole = pd.concat(parts.values())
    shuffled = whole.assign(y=np.random.default_rng(0).permutation(whole.y.to_numpy()))
    parts = dict(iter(shuffled.groupby("site")))
    centre = {name: part.assign(y=part.y - part.y.mean()) for name, part in parts.items()}
    fit = fd.glm("y ~ x", centre, random="site")
    assert fit.tau2 == 0.0
    plain = fd.glm("y ~ x", centre)
    assert fit["x"].error == pytest.approx(plain["x"].error, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"random": "ward"}, "'random' of glm"),
        ({"random": "site", "site_intercepts": True}, "fixed or random, not both"),
        ({"random": "site", "errors": "HC1"}, "go with errors='hessian'"),
        ({"random": "site", "family": "gamma"}, "Gamma"),
    ],
)
def test_what_does_not_go_with_intercepts_of_sites_gets_a_sentence(arguments, sentence):
    with pytest.raises(fd.FoedusError, match=sentence):
        fd.glm("count ~ x", cohort(), **({"family": "poisson"} | arguments))
