"""DP-SGD of a logistic model (Abadi et al. 2016) by a curator of all rows, in NumPy, for comparison.

In each step every row is drawn by itself with the same probability (Poisson sampling); the gradients of the drawn rows
are clipped, added up, and get normal noise. dp-accounting finds the noise from the loss distribution of all steps, for
adding or removing a row: a weaker relation than replacing one, by about a factor of two in ε. foedus itself uses
nothing of this.
"""

from functools import lru_cache

import numpy as np

# the probability of sampling, the number of steps, the clip and the length of a step: the best of twenty on Adult
RATE, STEPS, CLIP, LENGTH = 0.03, 300, 1.0, 1.0
AVERAGED = 0.5  # the share of the last steps whose models are averaged


@lru_cache(maxsize=16)
def noise_multiplier(epsilon: float, delta: float, rate: float = RATE, steps: int = STEPS) -> float:
    """Return the least noise, as standard deviation over clip, that keeps (ε, δ) for adding or removing a row."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def event(sigma: float) -> dp_accounting.DpEvent:
        one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(one, steps)

    return float(
        dp_accounting.calibrate_dp_mechanism(
            PLDAccountant, event, epsilon, delta, dp_accounting.LowerEndpointAndGuess(0.3, 1.0), tol=1e-4
        )
    )


def dp_sgd(
    X: np.ndarray, y: np.ndarray, sigma: float, seed: int, rate: float = RATE, steps: int = STEPS, clip: float = CLIP,
    length: float = LENGTH,
) -> np.ndarray:  # fmt: skip
    """Return the model.

    Args:
        X: the rows. (rows, dim)
        y: their labels, 0 or 1.
        sigma: the standard deviation of the noise, over the clip.
        seed: of sampling and noise.
        rate: the probability with which a row is in a step.
        steps: how many there are.
        clip: the largest norm of a row's gradient.
        length: of a step along the mean gradient.
    """
    draw, w = np.random.default_rng(seed), np.zeros(X.shape[1])
    norms, models = np.linalg.norm(X, axis=1), []
    for _ in range(steps):
        rows = draw.random(len(y)) < rate
        slope = 1.0 / (1.0 + np.exp(-X[rows] @ w)) - y[rows]
        bound = clip / np.maximum(norms[rows], 1e-300)
        total = np.clip(slope, -bound, bound) @ X[rows] + sigma * clip * draw.normal(size=w.size)
        w = w - length * total / (rate * len(y))
        models.append(w)
    return np.mean(models[int((1.0 - AVERAGED) * steps) :], axis=0)
