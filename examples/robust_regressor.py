"""Three laboratories predict a dose from noisy assays: a regression that allows for errors in what it is given."""

import numpy as np

import foedus as fd


def laboratory(seed: int, rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Four assays, of which two are nearly the same; the dose depends on the first."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 4))
    X[:, 1] = X[:, 0] + 0.05 * draw.normal(size=rows)
    return X, 2.0 * X[:, 0] + 0.5 * X[:, 2] + 0.3 * draw.standard_t(3, size=rows)


labs = {name: laboratory(seed) for seed, name in enumerate(("north", "south", "east"))}
plain = fd.RobustRegressor(radius=0.0).fit(labs)
robust = fd.RobustRegressor(radius=0.05).fit(labs)
print(robust.worst_case_)

X, y = (np.concatenate(part) for part in zip(*(laboratory(seed) for seed in range(10, 40)), strict=True))
noisy = X + 0.3 * np.random.default_rng(0).normal(size=X.shape)
for title, model in (("plain", plain), ("robust", robust)):
    error = np.mean(np.abs(model.predict(noisy) - y))
    print(f"{title}: coefficients {np.round(model.coef_, 2)}, mean error on noisy assays {error:.3f}")
