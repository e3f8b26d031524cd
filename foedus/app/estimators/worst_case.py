"""The code that both robust estimators share: settings, the fit by DRFL, and the choice of the radius."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from foedus.algorithms import DRFL
from foedus.app.estimators.rows import Site, WeightedMask, has_weights, pad_rows
from foedus.app.solve import solve
from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.problem.losses import Loss
from foedus.problem.problem import Problem
from foedus.problem.stacked import stack
from foedus.runtime.run import Run

RADII = (1e-4, 1e-3, 1e-2, 1e-1)
"""The radii that radius="cv" chooses from."""

Radius: TypeAlias = float | Sequence[float] | str
Support: TypeAlias = tuple[ArrayLike, ArrayLike] | None


@dataclass(frozen=True)
class WorstCaseFit:
    """The run of one linear model, its radius, and the held-out losses by radius where it was chosen by them."""

    run: Run
    radius: float | Sequence[float]
    held_out: dict[float, float] | None


class WorstCaseEstimator:
    """The code that both robust estimators share: their settings, the fit by DRFL, and the choice of the radius."""

    loss: str
    radius: Radius
    radii: Sequence[float]
    folds: int
    kappa: float
    theta: float
    p: int | str
    metric: str
    support: Support
    fit_intercept: bool
    max_rounds: int
    seed: int

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _drfl(self, radius: float | Sequence[float]) -> DRFL:
        return DRFL(
            radius=radius, kappa=self.kappa, theta=self.theta, p=self.p, metric=self.metric, support=self.support,
            intercept=bool(self.fit_intercept),
        )  # fmt: skip

    def _solve(self, sites: Sequence[Site], radius: float | Sequence[float]) -> Run:
        arrays = {site.name: site.arrays(self.fit_intercept) for site in sites}
        where = WeightedMask() if has_weights(sites) else None
        problem = Problem(pad_rows(stack(arrays)), loss=self._loss(), where=where)
        algorithm = self._drfl(radius)
        run = solve(problem, algorithm, seed=self.seed, max_rounds=self.max_rounds)
        if run.converged or algorithm.method is not None:
            return run
        # where most samples lie on the straight parts of a loss, the interior-point method may take no further step
        other = solve(problem, replace(algorithm, method="splitting"), seed=self.seed, max_rounds=self.max_rounds)
        return other if other.converged else run

    @float64()
    def _held_out_losses(self, sites: Sequence[Site]) -> dict[float, float]:
        """Return the mean held-out loss by radius; each site divides its own rows and reports only sums."""
        if not all(isinstance(r, Real) and np.isfinite(float(r)) and float(r) >= 0 for r in self.radii):
            raise FoedusError(f"The 'radii' of {type(self).__name__} must be numbers >= 0. Got {self.radii!r} instead.")
        loss, rng = self._loss(), np.random.default_rng(self.seed)
        fold = {site.name: rng.permutation(len(site.y)) % self.folds for site in sites}
        short = next((site.name for site in sites if len(site.y) < 2 * self.folds), None)
        if short is not None:
            raise FoedusError(
                f"site {short!r}: radius='cv' with {self.folds} folds needs {2 * self.folds} rows at every site."
            )
        scores = []
        for radius in self.radii:
            total = count = 0.0
            for k in range(self.folds):
                training = [site.rows(fold[site.name] != k) for site in sites]
                w = np.asarray(self._solve(training, float(radius)).w)
                for site in sites:
                    rows = site.rows(fold[site.name] == k)
                    z = rows.arrays(self.fit_intercept)["x"] @ w
                    weight = np.ones(len(z)) if rows.weight is None else rows.weight
                    total += float(weight @ np.asarray(loss.value(jnp.asarray(z), jnp.asarray(rows.y))))
                    count += float(weight.sum())
            scores.append(total / count)
        return dict(zip(map(float, self.radii), scores, strict=True))

    def _train_over(self, sites: Sequence[Site], name: str = "") -> "WorstCaseFit":
        """Choose a radius and solve; `name` is what a warning calls the class that is told from the others."""
        radius, scores = self.radius, None
        if isinstance(radius, str):
            scores = self._held_out_losses(sites)
            radius = min(scores, key=scores.__getitem__)
        run = self._solve(sites, radius)
        if not run.converged:
            warnings.warn(f"{type(self).__name__}{name}: {run.reason}.", ConvergenceWarning, stacklevel=3)
        return WorstCaseFit(run, radius, scores)

    def _check_all(self, choices: tuple[str, ...]) -> None:
        if self.loss not in choices:
            raise FoedusError(
                f"The 'loss' parameter of {type(self).__name__} must be one of {', '.join(map(repr, choices))}. "
                f"Got {self.loss!r} instead."
            )
        if isinstance(self.radius, str) and self.radius != "cv":
            raise FoedusError(
                f"The 'radius' parameter of {type(self).__name__} must be a number >= 0 or 'cv'. "
                f"Got {self.radius!r} instead."
            )
        for name, least in (("folds", 2), ("max_rounds", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise FoedusError(
                    f"The {name!r} parameter of {type(self).__name__} must be a whole number >= {least}. "
                    f"Got {value!r} instead."
                )
        self._drfl(0.0 if isinstance(self.radius, str) else self.radius)
