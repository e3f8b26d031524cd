"""Three clinics of unequal size fit two regressions, and get what a fit on all their rows together gives."""

import numpy as np
from sklearn import linear_model

import foedus as fd

WEIGHT, SIZES = 0.01, {"north": 60, "south": 240, "west": 900}
draw = np.random.default_rng(0)
X = {name: draw.normal(size=(rows, 3)) for name, rows in SIZES.items()}
stay = {name: 4.0 + x @ [1.0, 0.5, 0.0] + draw.normal(size=len(x)) for name, x in X.items()}
ill = {name: np.where(x[:, 0] + draw.normal(size=len(x)) > 0, "ill", "well") for name, x in X.items()}

days = fd.LinearRegression(ridge=WEIGHT).fit({name: (X[name], stay[name]) for name in X})
risk = fd.LogisticRegression(ridge=WEIGHT).fit({name: (X[name], ill[name]) for name in X})
print(risk.certificate_)

rows, total = np.concatenate([*X.values()]), sum(SIZES.values())
pooled = linear_model.Ridge(alpha=WEIGHT * total).fit(rows, np.concatenate([*stay.values()]))
print(f"days: {np.round(days.coef_, 4)}, pooled {np.round(pooled.coef_, 4)}, {days.n_rounds_} rounds")
pooled = linear_model.LogisticRegression(C=1 / (WEIGHT * total), tol=1e-10).fit(rows, np.concatenate([*ill.values()]))
print(f"risk: {np.round(np.ravel(risk.coef_), 4)}, pooled {np.round(pooled.coef_[0], 4)}, {risk.n_rounds_} rounds")
