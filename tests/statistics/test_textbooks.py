"""Data sets of textbooks, dealt out to sites of different sizes: coefficients and errors are those of statsmodels."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.datasets as sets
from formulaic import model_matrix
from sklearn import datasets

import foedus as fd

F = sm.families
CLOSE = {"tol": 1e-13, "tol_criterion": "params", "maxiter": 300}
DATA = Path(os.environ.get("FOEDUS_DATA", "nowhere"))
THEIRS = {
    "gaussian": F.Gaussian(),
    "binomial": F.Binomial(),
    "probit": F.Binomial(F.links.Probit()),
    "poisson": F.Poisson(),
    "gamma": F.Gamma(F.links.Log()),
}
OURS = {"probit": {"family": "binomial", "link": "probit"}}
BOOKS = {
    "longley": ("gaussian", "TOTEMP ~ GNPDEFL + GNP + UNEMP + ARMED + POP + YEAR"),
    "stackloss": ("gaussian", "STACKLOSS ~ AIRFLOW + WATERTEMP + ACIDCONC"),
    "engel": ("gaussian", "foodexp ~ income + I(income**2)"),
    "ccard": ("gaussian", "AVGEXP ~ AGE + INCOME + INCOMESQ + OWNRENT"),
    "copper": ("gaussian", "WORLDCONSUMPTION ~ COPPERPRICE + INCOMEINDEX + ALUMPRICE + INVENTORYINDEX"),
    "statecrime": ("gaussian", "murder ~ urban + poverty + hs_grad + single"),
    "spector": ("binomial", "GRADE ~ GPA + TUCE + PSI"),
    "spector ": ("probit", "GRADE ~ GPA + TUCE + PSI"),
    "fair": ("poisson", "affairs ~ rate_marriage + age + yrs_married + C(religious, ref=2)"),
    "cpunish": ("poisson", "EXECUTIONS ~ INCOME + PERPOVERTY + PERBLACK + log(VC100k96) + SOUTH + DEGREE"),
    "randhie": ("poisson", "mdvis ~ lncoins + idp + lpi + fmde + physlm + disea + hlthg + hlthf + hlthp"),
    "committee": ("poisson", "BILLS104 ~ SIZE + SUBS + log(STAFF) + PRESTIGE + BILLS103"),
    "scotland": ("gamma", "YES ~ COUTAX * UNEMPF + MOR + ACT + GDP + AGE"),
    "strikes": ("gamma", "duration ~ iprod"),
    "heart": ("gamma", "survival ~ age + bs(age, df=4)*censors - age"),
    "cancer": ("gaussian", "cancer ~ poly(population, 2)"),
    "diabetes": ("gaussian", "y ~ age + sex + bmi * bp + s1 + s5"),
    "breast cancer": ("binomial", "y ~ texture + smooth + center(texture):smooth"),
    "iris": ("binomial", "y == 1 ~ standardize(sl) + sw"),
}


def book(name: str) -> pd.DataFrame:
    if name == "diabetes":
        whole = datasets.load_diabetes(as_frame=True).frame
        return whole.rename(columns={"target": "y"})
    if name == "breast cancer":
        raw = datasets.load_breast_cancer()
        return pd.DataFrame({"y": raw.target, "texture": raw.data[:, 1], "smooth": raw.data[:, 4]})
    if name == "iris":
        raw = datasets.load_iris()
        return pd.DataFrame({"y": raw.target, "sl": raw.data[:, 0], "sw": raw.data[:, 1]})
    return getattr(sets, name.strip()).load_pandas().data.astype(float)


def dealt(whole: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Five sites of different sizes."""
    order = np.random.default_rng(0).permutation(len(whole))
    parts = np.split(order, (np.array([0.1, 0.25, 0.35, 0.6]) * len(whole)).astype(int))
    return {f"site {i}": whole.iloc[part] for i, part in enumerate(parts)}


def check_book(whole: pd.DataFrame, family: str, formula: str) -> None:
    fit = fd.glm(formula, dealt(whole), **OURS.get(family, {"family": family}))
    left, right = formula.split("~")
    X = model_matrix(right.replace("ref=2", "contr.treatment(2)"), whole)
    y = np.asarray(whole.eval(left), dtype=float)
    pooled = sm.GLM(y, X, family=THEIRS[family]).fit(**CLOSE)
    if family == "gaussian":
        pooled = sm.OLS(y, X).fit()
    np.testing.assert_allclose([row.value for row in fit.table.rows], pooled.params, rtol=1e-6)
    np.testing.assert_allclose([row.error for row in fit.table.rows], pooled.bse, rtol=1e-6)
    np.testing.assert_allclose(fit.table.figures.log_likelihood, pooled.llf, rtol=1e-9)
    if family == "gaussian":
        np.testing.assert_allclose([row.p for row in fit.table.rows], pooled.pvalues, rtol=1e-6, atol=1e-300)
    assert fit.rounds <= 12


QUICK = ("longley", "spector", "scotland", "iris")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in BOOKS])
def test_a_textbook_has_the_coefficients_and_errors_of_statsmodels(name):
    check_book(book(name), *BOOKS[name])


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "heart.dat").exists(), reason="FOEDUS_DATA has no heart.dat")
def test_the_statlog_heart_data_have_them_too():
    whole = pd.read_csv(DATA / "heart.dat", sep=" ", header=None, names=[f"v{j}" for j in range(14)])
    check_book(whole, "binomial", "v13 == 2 ~ v0 + v1 + C(v2) + v3 + log(v4) + v7")


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "abalone.data").exists(), reason="FOEDUS_DATA has no abalone.data")
def test_the_abalone_data_have_them_too():
    whole = pd.read_csv(DATA / "abalone.data", header=None, names=["sex", *(f"v{j}" for j in range(7)), "rings"])
    check_book(whole, "poisson", "rings ~ sex + v0 + bs(v3, df=5)")
