"""RobustClassifier and RobustRegressor in scikit-learn's manners."""

import numpy as np
import pytest
from sklearn.base import clone

import foedus as fd

RNG = np.random.default_rng(0)
TABLES = [RNG.normal(size=(40, 3)) for _ in range(3)]
CENTRE = np.array([1.0, -1.0, 0.5])


def classes():
    rng = np.random.default_rng(1)
    return {
        f"s{i}": (X, np.where(X @ CENTRE + 0.4 + 0.5 * rng.normal(size=40) > 0, "yes", "no"))
        for i, X in enumerate(TABLES)
    }


def targets():
    rng = np.random.default_rng(2)
    return {f"s{i}": (X, X @ CENTRE + 0.4 + 0.3 * rng.normal(size=40)) for i, X in enumerate(TABLES)}


def test_a_classifier_over_sites_and_over_rows_is_the_same():
    sites = classes()
    fitted = fd.RobustClassifier("logistic", radius=0.05, theta=0.2).fit(sites)
    X, y = (np.concatenate(part) for part in zip(*sites.values(), strict=True))
    names = np.repeat(list(sites), 40)
    again = clone(fitted).fit(X, y, sites=names)
    np.testing.assert_allclose(fitted.coef_, again.coef_, atol=1e-12)
    assert fitted.score(X, y) > 0.8
    np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1.0)
    assert set(fitted.predict(X)) <= {"yes", "no"}
    assert fitted.worst_case_.value > 0
    assert not hasattr(fd.RobustClassifier("hinge"), "predict_proba")
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'"):
        fd.RobustClassifier("hinge").predict_proba(X)


def test_the_radius_is_chosen_by_held_out_loss():
    fitted = fd.RobustClassifier("logistic", radius="cv", radii=(0.01, 5.0), folds=2, theta=0.2).fit(classes())
    assert set(fitted.cv_losses_) == {0.01, 5.0}
    assert fitted.radius_ == min(fitted.cv_losses_, key=fitted.cv_losses_.get) == 0.01


def test_no_radius_is_the_least_mean_loss():
    """Hinge losses without a ball leave a valley, along which acceleration runs far off unless it is held back."""
    import cvxpy as cp

    sites = {}
    for seed, name in enumerate(("north", "south", "east")):
        draw, ill = np.random.default_rng(seed), np.arange(60) % 3 == 0
        X = (draw.normal(size=(60, 3)) + ill[:, None] * [1.5, 1.5, 0.3]) * [1.0, 1.0, 0.2]
        sites[name] = (X, np.where(ill, 1.0, -1.0))
    fitted = fd.RobustClassifier(radius=0.0).fit(sites)
    assert fitted.run_.converged, fitted.run_.reason
    X, y = (np.concatenate(part) for part in zip(*sites.values(), strict=True))
    w, c = cp.Variable(3), cp.Variable()
    best = cp.Problem(cp.Minimize(cp.sum(cp.pos(1 - cp.multiply(y, X @ w + c))) / len(y))).solve(solver="CLARABEL")
    found = np.mean(np.maximum(0.0, 1.0 - y * fitted.decision_function(X)))
    assert found == pytest.approx(best, rel=1e-5)


def test_a_regressor_takes_the_same_forms_of_sites_as_a_classifier():
    X, y, names = (
        *(np.concatenate(part) for part in zip(*targets().values(), strict=True)),
        np.repeat(list(targets()), 40),
    )
    fitted = fd.RobustRegressor("huber", radius=0.01).fit(targets())
    for again in (
        clone(fitted).fit({name: {"x": X, "y": y} for name, (X, y) in targets().items()}),
        clone(fitted).fit(list(targets().values())),
        clone(fitted).fit(X, y, sites=names),
    ):
        np.testing.assert_allclose(fitted.coef_, again.coef_, atol=1e-12)
    with pytest.raises(
        fd.FoedusError, match=r"site 's1': expected \(X, y\) or a dict of these arrays. Got a tuple of 1"
    ):
        clone(fitted).fit(targets() | {"s1": (X,)})


def test_a_regressor_fits_and_a_wider_ball_shrinks_it():
    X, y = targets()["s0"]
    narrow, wide = (fd.RobustRegressor("huber", radius=r).fit(targets()) for r in (0.01, 1.0))
    assert narrow.score(X, y) > 0.85
    assert np.max(np.abs(wide.coef_)) < np.max(np.abs(narrow.coef_))
    np.testing.assert_allclose(narrow.predict(X), X @ narrow.coef_ + narrow.intercept_)


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (fd.RobustClassifier("huber"), "The 'loss' parameter of RobustClassifier must be one of 'hinge'"),
        (fd.RobustClassifier(radius="best"), "must be a number >= 0 or 'cv'. Got 'best'"),
        (fd.RobustClassifier(radius=-1.0), "The 'radius' setting of DRFL must be"),
        (fd.RobustClassifier(folds=1), "The 'folds' parameter of RobustClassifier must be a whole number >= 2"),
        (fd.RobustClassifier(radius="cv", folds=30), "site 's0': radius='cv' with 30 folds needs 60 rows"),
    ],
)
def test_a_wrong_setting_gets_a_sentence(estimator, words):
    with pytest.raises(fd.FoedusError, match=words):
        estimator.fit(classes())
