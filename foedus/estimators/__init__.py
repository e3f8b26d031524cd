"""Estimators in scikit-learn's manners, trained over sites and returned with the certificate of their terms."""

from foedus.estimators.fair import FairClassifier
from foedus.estimators.neyman_pearson import NeymanPearsonClassifier
from foedus.estimators.robust import RobustClassifier, RobustRegressor

__all__ = ["FairClassifier", "NeymanPearsonClassifier", "RobustClassifier", "RobustRegressor"]
