"""Cox's model from sums: equal to statsmodels and scipy on the pooled rows, and to what R prints."""

import numpy as np
import pytest
import statsmodels.duration.hazard_regression as hazard_regression
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from survival_cases import BRCA, aml, brca, cohort, dealt, log_partial, ovarian, pooled, strata

import foedus as fd
from foedus.statistics.survival.risk_sets import Places, hazards, moments, score_residuals
from foedus.statistics.survival.rows import SurvivalRows

FORMULA = "Surv(time, event) ~ x0 + x1 + x2"
SIZES = {"north": 60, "south": 110, "west": 31}


def columns_of(sites, names=("x0", "x1", "x2")):
    whole = pooled(sites)
    return whole["time"], whole["event"], np.column_stack([whole[name] for name in names])


def peer(sites, ties, by_site):
    time, event, x = columns_of(sites)
    groups = strata(sites) if by_site else None
    return hazard_regression.PHReg(time, x, status=event, strata=groups, ties=ties)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("unit", [0.0, 0.125], ids=["no ties", "ties"])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("by_site", [True, False], ids=["by site", "common"])
def test_the_answer_is_that_of_the_pooled_rows(by_site, ties, unit, secure):
    sites = cohort(SIZES | {"east": 45}, 3, seed=1, unit=unit)
    time, event, _ = columns_of(sites)
    grid = None if by_site else np.unique(time[event > 0])
    fit = fd.cox(FORMULA, sites, strata="site" if by_site else None, ties=ties, grid=grid, secure=secure)
    there = peer(sites, ties, by_site).fit(disp=0)
    assert fit.coefficients == pytest.approx(there.params, rel=1e-7, abs=1e-9)
    assert fit.errors == pytest.approx(there.bse, rel=1e-7)
    assert fit.log_likelihood[0] == pytest.approx(there.llf, rel=1e-12)
    assert fit.rounds <= (8 if by_site else 16)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), ties=st.sampled_from(["efron", "breslow"]), by_site=st.booleans())
def test_random_cohorts_with_ties_have_the_textbook_maximum(seed, ties, by_site):
    draw = np.random.default_rng(seed)
    sizes = {f"s{k}": int(draw.integers(15, 50)) for k in range(3)}
    sites = cohort(sizes, 3, seed=seed, unit=0.25)
    time, event, x = columns_of(sites)
    grid = None if by_site else np.unique(time[event > 0])
    fit = fd.cox(FORMULA, sites, strata="site" if by_site else None, ties=ties, grid=grid)
    groups = strata(sites) if by_site else None
    shift, unit = x.mean(axis=0), x.std(axis=0)
    z = (x - shift) / unit
    there = minimize(lambda b: -log_partial(time, event, z, b, ties, groups), np.zeros(3), method="BFGS", tol=1e-9)
    assert fit.log_likelihood[0] >= -there.fun - 1e-9 * abs(there.fun)
    assert fit.coefficients * unit == pytest.approx(there.x, abs=1e-4)
    at = log_partial(time, event, z, fit.coefficients * unit, ties, groups)
    assert fit.log_likelihood[0] == pytest.approx(at, rel=1e-11)
    assert fit.log_likelihood[1] == pytest.approx(log_partial(time, event, z, np.zeros(3), ties, groups), rel=1e-11)


def test_what_r_prints_for_ovarian():
    """`coxph(Surv(futime, fustat) ~ age, ovarian)` of R's survival prints 0.16162, 0.04974, 14.29 on 1 df."""
    data = ovarian()
    grid = np.unique(data["futime"])
    fit = fd.cox("Surv(futime, fustat) ~ age", dealt(data, 3), strata=None, grid=grid)
    assert round(fit["age"].coefficient, 5) == 0.16162
    assert round(fit["age"].error, 5) == 0.04974
    assert round(fit.likelihood_ratio.statistic, 2) == 14.29


def test_what_r_prints_for_aml():
    """`coxph(Surv(time, status) ~ x, aml)` of R's survival prints 0.9155, 0.5119 and p = 0.0737; there are ties."""
    data = aml()
    data["x"] = (data["x"] == "Nonmaintained").astype(float)
    fit = fd.cox("Surv(time, event) ~ x", dealt(data, 2), strata=None, grid=np.unique(data["time"]))
    line = fit["x"]
    assert [round(line.coefficient, 4), round(line.error, 4), round(line.p, 4)] == [0.9155, 0.5119, 0.0737]


def test_what_r_prints_for_the_test_of_proportional_hazards():
    """`cox.zph(coxph(Surv(futime, fustat) ~ age + ecog.ps, ovarian))` of R's survival 3 prints these lines."""
    data = ovarian()
    sites = dealt(data, 3)
    fit = fd.cox("Surv(futime, fustat) ~ age + ecog.ps", sites, strata=None, grid=np.unique(data["futime"]))
    test = fit.proportional()
    assert round(test.tests["age"].statistic, 3) == 0.698
    assert round(test.tests["ecog.ps"].statistic, 3) == 2.371
    assert round(test.all.statistic, 3) == 3.633
    assert [round(t.p, 2) for t in (test.tests["age"], test.tests["ecog.ps"], test.all)] == [0.40, 0.12, 0.16]


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("by_site", [True, False], ids=["by site", "common"])
def test_the_test_of_proportional_hazards_is_the_score_test_of_the_textbook_likelihood(by_site, ties):
    """Differences of the likelihood in which a covariate's effect grows with time; no code is shared."""
    sites = cohort({"a": 35, "b": 50, "c": 40}, 2, seed=3, unit=0.25)
    time, event, x = columns_of(sites, ("x0", "x1"))
    groups = strata(sites) if by_site else np.zeros(len(time))
    grid = None if by_site else np.unique(time[event > 0])
    fit = fd.cox("Surv(time, event) ~ x0 + x1", sites, strata="site" if by_site else None, ties=ties, grid=grid)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    beta = fit.coefficients * x.std(axis=0)

    def value(theta):
        total = 0.0  # x·(β + θ g(t)): each time has coefficients of its own
        for s in np.unique(groups):
            for t in np.unique(time[(event > 0) & (groups == s)]):
                dead = np.flatnonzero((groups == s) & (time == t) & (event > 0))
                risk = np.flatnonzero((groups == s) & (time >= t))
                eta = z @ (theta[:2] + theta[2:] * t)
                for place in range(len(dead)):
                    share = place / len(dead) if ties == "efron" else 0.0
                    total += eta[dead[place]] - np.log(np.exp(eta[risk]).sum() - share * np.exp(eta[dead]).sum())
        return total

    start, h = np.r_[beta, 0.0, 0.0], 1e-3
    unit = np.eye(4) * h
    gradient = np.array([(value(start + u) - value(start - u)) / (2 * h) for u in unit])
    information = -np.array(
        [[(value(start + u + v) - value(start + u - v) - value(start - u + v) + value(start - u - v)) / (4 * h * h)
          for u in unit] for v in unit]
    )  # fmt: skip
    inside = information[2:, 2:] - information[2:, :2] @ np.linalg.solve(information[:2, :2], information[:2, 2:])
    test = fit.proportional("identity")
    expected = gradient[2:] @ np.linalg.solve(inside, gradient[2:])
    assert test.all.statistic == pytest.approx(expected, rel=2e-4)
    assert test.tests["x0"].statistic == pytest.approx(gradient[2] ** 2 / inside[0, 0], rel=2e-4)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("by_site", [True, False], ids=["by site", "common"])
def test_robust_errors_are_those_of_the_change_by_each_row(by_site, ties):
    """A row's residual is how the gradient of the weighted likelihood changes with the row's weight."""
    sites = cohort({"a": 30, "b": 45, "c": 40}, 3, seed=5, unit=0.25)
    time, event, x = columns_of(sites)
    groups = strata(sites) if by_site else None
    grid = None if by_site else np.unique(time[event > 0])
    fit = fd.cox(FORMULA, sites, strata="site" if by_site else None, ties=ties, grid=grid, robust=True)
    naive = fd.cox(FORMULA, sites, strata="site" if by_site else None, ties=ties, grid=grid)
    h, unit, rows = 1e-4, x.std(axis=0), len(time)
    z, beta = (x - x.mean(axis=0)) / unit, fit.coefficients * unit

    def gradient(weights):
        steps = np.eye(3) * h
        return np.array([
            (log_partial(time, event, z, beta + u, ties, groups, weights)
             - log_partial(time, event, z, beta - u, ties, groups, weights)) / (2 * h) for u in steps
        ])  # fmt: skip

    residuals = np.array([(gradient(1 + h * row) - gradient(1 - h * row)) / (2 * h) for row in np.eye(rows)])
    inverse = naive.covariance * unit[:, None] * unit
    expected = inverse @ residuals.T @ residuals @ inverse
    assert fit.covariance * unit[:, None] * unit == pytest.approx(expected, rel=2e-3, abs=1e-6)
    assert not np.allclose(fit.errors, naive.errors, rtol=1e-3)


def test_errors_of_clusters_are_those_of_statsmodels():
    sites = cohort(SIZES, 3, seed=2)
    for k, columns in enumerate(sites.values()):
        columns["ward"] = np.arange(len(columns["time"])) // 5 + 100 * k
    fit = fd.cox(FORMULA, sites, cluster="ward", ties="breslow")
    there = peer(sites, "breslow", True).fit(groups=pooled(sites)["ward"], disp=0)
    assert fit.errors == pytest.approx(there.bse, rel=1e-6)


def test_score_residuals_add_up_to_the_gradient():
    columns = pooled(cohort({"a": 80}, 2, seed=4, unit=0.25))
    x = np.column_stack([columns["x0"], columns["x1"]]) / 5
    rows = SurvivalRows(columns["time"], columns["event"] > 0, x)
    places = Places.of(rows, np.unique(rows.time[rows.event]))
    counts = np.rint(places.events(np.ones(80))).astype(int)
    eta = x @ [0.3, -0.2]
    of = hazards(moments(x, places, eta), counts, "efron")
    total = score_residuals(x, places, eta, of).sum(axis=0)
    assert total == pytest.approx(x[rows.event].sum(axis=0) - of.times @ of.z, abs=1e-10)


def test_the_baseline_hazard_is_that_of_the_pooled_rows():
    sites = cohort(SIZES, 3, seed=6)
    time, event, x = columns_of(sites)
    grid = np.unique(time[event > 0])
    fit = fd.cox(FORMULA, sites, strata=None, grid=grid, ties="breslow")
    risk = np.exp((x - x.mean(axis=0)) @ fit.coefficients)
    expected = np.cumsum([np.sum((time == t) & (event > 0)) / risk[time >= t].sum() for t in grid])
    base = fit.baseline()
    assert base.hazard == pytest.approx(expected, rel=1e-9)
    assert base.survival(x.mean(axis=0)) == pytest.approx(np.exp(-expected)[None], rel=1e-9)


def test_a_coarse_grid_is_the_pooled_model_with_times_brought_to_it():
    sites = cohort(SIZES, 3, seed=7)
    grid = np.arange(0.2, 2.01, 0.2)
    fit = fd.cox(FORMULA, sites, strata=None, grid=grid)
    moved = {}
    for name, columns in sites.items():
        time, event = columns["time"], columns["event"]
        up = np.searchsorted(grid, time)
        down = np.searchsorted(grid, time, "right") - 1
        inside = (event > 0) & (up < len(grid))
        last = np.r_[grid, np.inf][np.minimum(up, len(grid))]
        new = np.where(inside, last, np.where(event > 0, grid[-1] + 1, np.r_[grid, 0.0][down]))
        moved[name] = columns | {"time": new, "event": inside.astype(float)}
    there = peer(moved, "efron", False).fit(disp=0)
    assert fit.coefficients == pytest.approx(there.params, rel=1e-7)
    assert fit.errors == pytest.approx(there.bse, rel=1e-7)


def pairs_by_hand(time, event, eta):
    right = total = 0.0
    for i in np.flatnonzero(event > 0):
        for j in range(len(time)):
            if time[j] > time[i] or (time[j] == time[i] and event[j] == 0):
                total += 1
                right += 1.0 if eta[i] > eta[j] else 0.5 if eta[i] == eta[j] else 0.0
    return right, total


def test_concordance_counts_pairs():
    sites = cohort(SIZES, 3, seed=8, unit=0.125)
    fit = fd.cox(FORMULA, sites)
    counts = [pairs_by_hand(c["time"], c["event"], fit.scores(c)) for c in sites.values()]
    right, total = np.sum(counts, axis=0)
    own = fit.concordance()
    assert (own.value, own.pairs) == (pytest.approx(right / total, abs=1e-12), total)
    time, event, _ = columns_of(sites)
    right, total = pairs_by_hand(time, event, fit.scores(pooled(sites)))
    for bins in (5, 50, 2000):
        common = fit.common_concordance(np.unique(time), bins)
        assert common.low - 1e-12 <= right / total <= common.high + 1e-12
        assert common.pairs == total
    assert common.high - common.low < 0.01
    assert common.value == pytest.approx(right / total, abs=0.005)


def test_a_cohort_of_the_shape_of_tcga_brca_takes_few_rounds():
    sites = brca()
    assert {name: len(columns["time"]) for name, columns in sites.items()} == BRCA
    fit = fd.cox("Surv(time, event) ~ .", sites)
    assert len(fit.names) == 39
    assert fit.rounds <= 8
    time, event, x = columns_of(sites, fit.names)
    there = hazard_regression.PHReg(time, x, status=event, strata=strata(sites), ties="efron").fit(disp=0)
    assert fit.coefficients == pytest.approx(there.params, rel=1e-6, abs=1e-8)
    assert 0.7 < fit.concordance().value < 0.95


# wrong input


def spoilt(**changes):
    sites = cohort(SIZES, 3, seed=9)
    for name, (site, value) in changes.items():
        column = sites[site][name] = np.array(sites[site][name], dtype=object if isinstance(value, str) else float)
        column[3] = value
    return sites


def nobody():
    sites = cohort(SIZES, 3, seed=9)
    for columns in sites.values():
        columns["event"] = np.zeros(len(columns["time"]))
    return sites


def same(value=None):
    sites = cohort(SIZES, 3, seed=9)
    for columns in sites.values():
        columns["x1"] = 2.0 * columns["x0"] + 1 if value is None else np.full(len(columns["time"]), value)
    return sites


def parted():
    sites = cohort(SIZES, 3, seed=9)
    for columns in sites.values():
        columns["x1"] = columns["event"]
    return sites


CLEAN = cohort(SIZES, 3, seed=9)
WRONG = [
    (spoilt(time=("south", -3.0)), FORMULA, {}, ("site 'south', row 4", "'time' is -3", ">= 0")),
    (spoilt(event=("west", 2.0)), FORMULA, {}, ("site 'west', row 4", "'event' is 2", "expected 1")),
    (spoilt(x1=("west", np.inf)), FORMULA, {}, ("site 'west', row 4", "'x1' is infinite")),
    (spoilt(x1=("west", "high")), FORMULA, {}, ("site 'west'", "'x1' holds the words 'high'")),
    (CLEAN, "Surv(time, event) ~ x0 + age", {}, ("no site has a column 'age'",)),
    (CLEAN | {"east": {"time": [1.0], "event": [1.0]}}, FORMULA, {}, ("site 'east'", "no column 'x0'")),
    (CLEAN, "time ~ x0", {}, ("Surv(time, event)", "'time ~ x0'")),
    (CLEAN, "Surv(time, event) ~ x0 + x0", {}, ("names 'x0' twice",)),
    (CLEAN, "Surv(time, event) ~ 1", {}, ("names no covariate",)),
    (nobody(), FORMULA, {}, ("'event' is 0 in every row",)),
    (CLEAN, FORMULA, {"strata": None, "grid": [0.0]}, ("no event lies on the grid", "empty")),
    (CLEAN, FORMULA, {"strata": None}, ("grid=range(",)),
    (CLEAN, FORMULA, {"grid": [1.0]}, ("strata=None",)),
    (CLEAN, FORMULA, {"strata": None, "grid": [2.0, 1.0]}, ("ascending",)),
    (CLEAN, FORMULA, {"ties": "exact"}, ("'ties' of cox", "'exact'")),
    (CLEAN, FORMULA, {"strata": "ward"}, ("'strata' of cox", "'ward'")),
    (same(), FORMULA, {}, ("'x0', 'x1' are collinear",)),
    (same(3.0), FORMULA, {}, ("'x1' has the same value in every row",)),
    (parted(), FORMULA, {}, ("'x1' grows without end",)),
    ({}, FORMULA, {}, ("sites by name",)),
    ({"a": 3}, FORMULA, {}, ("site 'a'", "columns by name")),
    ({"a": {"time": [1.0, 2.0], "event": [1.0]}}, FORMULA, {}, ("site 'a'", "'time' has 2 rows", "'event' has 1")),
]  # fmt: skip


@pytest.mark.parametrize(("sites", "formula", "settings", "words"), WRONG, ids=[w[3][-1] for w in WRONG])
def test_wrong_input_gets_a_sentence(sites, formula, settings, words):
    with pytest.raises(fd.FoedusError) as error:
        fd.cox(formula, sites, **settings)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def test_a_stratified_fit_has_no_common_baseline():
    with pytest.raises(fd.FoedusError, match="stays there"):
        fd.cox(FORMULA, CLEAN).baseline()


def test_rows_with_a_missing_value_are_left_out_and_counted():
    sites = spoilt(x0=("north", np.nan))
    fit = fd.cox(FORMULA, sites)
    assert (fit.missing, fit.rows) == (1, sum(SIZES.values()) - 1)
    assert "1 rows with a missing value" in str(fit)
    sites["north"] = {name: np.delete(values, 3) for name, values in sites["north"].items()}
    assert fit.coefficients == pytest.approx(fd.cox(FORMULA, sites).coefficients, rel=1e-12)


def test_answers_of_a_stratified_fit_say_nothing_of_times():
    """Any increasing change of a site's times leaves every answer the same to the bit."""
    sites = cohort(SIZES, 3, seed=10, unit=0.25)
    other = {name: columns | {"time": np.exp(columns["time"]) + 5} for name, columns in sites.items()}
    one, two = fd.cox(FORMULA, sites), fd.cox(FORMULA, other)
    assert np.array_equal(one.coefficients, two.coefficients)
    assert np.array_equal(one.covariance, two.covariance)
    assert one.log_likelihood == two.log_likelihood
