"""Three clinics fit the regressions that the pooled rows would give, and no row leaves a clinic."""

import numpy as np
from sklearn import linear_model

import foedus as fd

draw = np.random.default_rng(0)
X = draw.normal(size=(600, 3))
clinic = np.repeat(["north", "south", "west"], [300, 200, 100])
ill = (X @ [1.5, -1.0, 0.0] + draw.logistic(size=600) > 0).astype(int)
dose = X @ [2.0, 0.5, -1.0] + 10.0 + draw.normal(size=600)

model = fd.LogisticRegression(ridge=0.01).fit(X, ill, sites=clinic)
pooled = linear_model.LogisticRegression(C=1 / (0.01 * len(ill)), tol=1e-10).fit(X, ill)
print(f"logistic: {np.round(model.coef_[0], 3)} over sites, {np.round(pooled.coef_[0], 3)} on the pooled rows")

line = fd.LinearRegression().fit(X, dose, sites=clinic)
pooled = linear_model.LinearRegression().fit(X, dose)
print(f"linear:   {np.round(line.coef_, 3)} over sites, {np.round(pooled.coef_, 3)} on the pooled rows")
print(f"rounds:   {model.n_rounds_} and {line.n_rounds_}")
