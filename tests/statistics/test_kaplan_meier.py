"""Kaplan-Meier curves and the log-rank test from counts: equal to lifelines and statsmodels on the pooled rows."""

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from statsmodels.duration.survfunc import survdiff
from survival_cases import aml, cohort, dealt, pooled

import foedus as fd

SIZES = {"north": 60, "south": 110, "west": 31, "east": 45}
FORMULA = "Surv(time, event) ~ ward"


def with_wards(seed: int):
    sites = cohort(SIZES, 1, seed=seed, unit=0.125)
    draw = np.random.default_rng(seed)
    return {name: own | {"ward": draw.choice(["A", "B", "C"], len(own["time"]))} for name, own in sites.items()}


@pytest.mark.parametrize("secure", [False, True])
def test_curves_and_test_are_those_of_the_pooled_rows(secure):
    sites = with_wards(3)
    whole = pooled(sites)
    grid = np.unique(whole["time"])
    curves = fd.kaplan_meier(FORMULA, sites, grid=grid, least=1, secure=secure)
    for ward in "ABC":
        own = whole["ward"] == ward
        there = KaplanMeierFitter().fit(whole["time"][own], whole["event"][own], timeline=grid)
        assert curves[ward].survival == pytest.approx(there.survival_function_at_times(grid).to_numpy(), abs=1e-12)
        assert curves[ward].median == there.median_survival_time_
        at_risk = [int(np.sum(whole["time"][own] >= time)) for time in grid]
        assert curves[ward].at_risk.tolist() == at_risk
    statistic, p = survdiff(whole["time"], whole["event"], whole["ward"])
    assert curves.test.statistic == pytest.approx(statistic, rel=1e-9)
    assert curves.test.p == pytest.approx(p, rel=1e-7)


def test_what_r_prints_for_aml():
    """R's survival: `survfit(Surv(time, status) ~ x, aml)` has medians 31 and 23, `survdiff` 3.4 on 1 df."""
    data = aml()
    curves = fd.kaplan_meier("Surv(time, event) ~ x", dealt(data, 2), grid=np.unique(data["time"]), least=1)
    assert (curves["Maintained"].median, curves["Nonmaintained"].median) == (31, 23)
    assert round(curves.test.statistic, 1) == 3.4
    # its summary prints 0.9091 with 0.0867 at time 9 and 0.8182 with 0.1163 at time 13
    at = {time: k for k, time in enumerate(curves["Maintained"].times.tolist())}
    own = curves["Maintained"]
    assert [round(own.survival[at[t]], 4) for t in (9, 13)] == [0.9091, 0.8182]
    assert [round(own.errors[at[t]], 4) for t in (9, 13)] == [0.0867, 0.1163]


@pytest.mark.parametrize("secure", [False, True])
def test_no_count_of_few_rows_is_told(secure):
    sites = with_wards(4)
    curves = fd.kaplan_meier(FORMULA, sites, grid=np.arange(0.125, 6.0, 0.125), least=5, secure=secure)
    for own in curves.by_group.values():
        steps = np.diff(own.at_risk)
        assert not np.any((own.events > 0) & (own.events < 5))
        assert not np.any((steps < 0) & (steps > -5))
    assert any(own.withheld for own in curves.by_group.values())
    assert "†" in str(curves)
    assert any(own.coarser for own in curves.by_group.values())
    assert curves.test is None
    assert "take a coarser one" in str(curves)


def test_wrong_input_gets_a_sentence():
    with pytest.raises(fd.FoedusError, match="names 2 columns"):
        fd.kaplan_meier("Surv(time, event) ~ ward + x0", with_wards(1), grid=[1.0])
    with pytest.raises(fd.FoedusError, match="ascending times"):
        fd.kaplan_meier(FORMULA, with_wards(1), grid=[2.0, 1.0])
