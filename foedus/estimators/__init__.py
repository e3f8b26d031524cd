"""Estimators with scikit-learn's interface, which train over sites; the algorithms that they run live elsewhere."""

from foedus.estimators.fair import FairClassifier
from foedus.estimators.neyman_pearson import NeymanPearsonClassifier
from foedus.estimators.robust import RobustClassifier, RobustRegressor

__all__ = ["FairClassifier", "NeymanPearsonClassifier", "RobustClassifier", "RobustRegressor"]
