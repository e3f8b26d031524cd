"""Estimators with scikit-learn's interface, which train over sites; the algorithms that they run live elsewhere."""

from foedus.app.estimators.fair import FairClassifier
from foedus.app.estimators.neyman_pearson import NeymanPearsonClassifier
from foedus.app.estimators.ordinary import LinearRegression, LogisticRegression
from foedus.app.estimators.robust import RobustClassifier, RobustRegressor

__all__ = [
    "FairClassifier",
    "LinearRegression",
    "LogisticRegression",
    "NeymanPearsonClassifier",
    "RobustClassifier",
    "RobustRegressor",
]
