"""Whether sites agree, from sums: against statsmodels' meta-analysis of the sites' own fits."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from statsmodels.stats.meta_analysis import combine_effects

import foedus as fd

SIZES = {"north": 80, "south": 150, "east": 60, "west": 220, "islands": 45}


def cohort(family: str, spread: float = 0.8) -> dict[str, pd.DataFrame]:
    draw, sites = np.random.default_rng(5), {}
    for site, n in SIZES.items():
        d = pd.DataFrame({"x": draw.normal(size=n) * 3 + 1, "age": draw.uniform(20, 80, n)})
        z = (0.2 + spread * 0.2 * draw.normal()) * d.x + 0.01 * (d.age - 50)
        d["y"] = draw.poisson(np.exp(z)) if family == "poisson" else z + draw.normal(size=n)
        sites[site] = d
    return sites


def own_fits(sites, family: str) -> tuple[np.ndarray, np.ndarray]:
    fits = [sm.GLM(d.y, sm.add_constant(d[["x", "age"]]), family=getattr(sm.families, family.title())()).fit(
                tol=1e-13, tol_criterion="params") for d in sites.values()]  # fmt: skip
    return np.array([f.params for f in fits]), np.array([f.bse**2 for f in fits])


@pytest.mark.parametrize("family", ["poisson", pytest.param("gaussian", marks=pytest.mark.slow)])
@pytest.mark.parametrize("secure", [pytest.param(False, marks=pytest.mark.slow), True])
def test_effects_are_those_of_a_meta_analysis_of_the_sites_own_fits(family, secure):
    sites = cohort(family)
    told = fd.glm("y ~ x + age", sites, family, secure=secure).heterogeneity()
    values, variances = own_fits(sites, family)
    for j, effect in enumerate(told.effects):
        with np.errstate(invalid="ignore"):  # where their τ² is negative
            theirs = combine_effects(values[:, j], variances[:, j], method_re="chi2")
        expected = [theirs.q, max(theirs.i2, 0.0), max(theirs.tau2, 0.0), theirs.mean_effect_fe, theirs.sd_eff_w_fe]
        mine = [effect.q.statistic, effect.i2, effect.tau2, *effect.fixed]
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-12)
        if theirs.tau2 > 0:
            random = [theirs.mean_effect_re, theirs.sd_eff_w_re]
            np.testing.assert_allclose(effect.random, random, rtol=1e-6)
    assert told.sites == (5, 5)
    assert told["x"].q.freedom == 4
    assert "of which sums alone were seen" in str(told)


def test_a_site_that_cannot_fit_the_model_takes_no_part_and_is_counted():
    sites = cohort("poisson") | {"ship": pd.DataFrame({"x": [1.0, 2.0], "age": [30.0, 40.0], "y": [0, 1]})}
    sites["boat"] = cohort("poisson")["north"].assign(x=2.0)
    told = fd.glm("y ~ x + age", sites, "poisson").heterogeneity()
    assert told.sites == (5, 7)
    values, variances = own_fits({name: sites[name] for name in SIZES}, "poisson")
    theirs = combine_effects(values[:, 1], variances[:, 1], method_re="chi2")
    np.testing.assert_allclose(told["x"].fixed, [theirs.mean_effect_fe, theirs.sd_eff_w_fe], rtol=1e-6)


def test_a_forest_plot_shows_those_sites_alone_that_allow_it():
    sites = cohort("poisson")
    told = fd.glm("y ~ x + age", sites, "poisson").heterogeneity(allow=["north", "west"])
    values, variances = own_fits(sites, "poisson")
    np.testing.assert_allclose(told["x"].by_site["west"], [values[3, 1], variances[3, 1] ** 0.5], rtol=1e-6)
    picture = told.forest("x")
    assert all(word in picture for word in ("north", "west", "fixed effect", "random effect", "3 sites are not shown"))
    assert not any(word in picture for word in ("south", "east", "islands"))
    with pytest.raises(fd.FoedusError, match=r"there is no site 'nort' to be shown\. Did you mean 'north'"):
        fd.glm("y ~ x + age", sites, "poisson").heterogeneity(allow=["nort"])


def test_one_site_alone_is_nothing_to_compare():
    sites = {name: part for name, part in cohort("poisson").items() if name == "north"}
    sites["ship"] = sites["north"].iloc[:2]
    with pytest.raises(fd.FoedusError, match="1 of 2 sites can fit this model"):
        fd.glm("y ~ x + age", sites, "poisson").heterogeneity()
