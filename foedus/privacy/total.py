"""Local: a total ε and δ for each client over a whole run, and the noise of one release that keeps the total."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.settings import check
from foedus.privacy.composition import gaussian_epsilon, tally_ratios, tightest
from foedus.privacy.noise import NEIGHBOURS, SAMPLERS, Gaussian, Laplace, Sound
from foedus.problem.problem import Problem

ROUNDS = 40
"""The rounds of a run with a total where nobody says how many: each round takes its share of the total."""
SAFETY = 1.0 - 1e-9  # the total aimed at, as a share of ε: rounding must not lift it above ε
BISECTIONS = 48  # halvings that find the largest ratio, to about 15 digits
ROWS_PER_LENGTH = 1.5  # the bound on rows over the length √dim that rows of standardised columns have on average


@dataclass(frozen=True, kw_only=True)
class Local:
    """A total of ε and δ for each client over the whole run; each client adds noise to what it sends.

    The noise of a release is the least whose tightest proved total, over one release in each of the run's rounds, is
    within (ε, δ): Gaussian noise where δ > 0, Laplace noise where δ = 0. A client ends its part after that many.

    Args:
        epsilon: the total ε.
        delta: the total δ.
        clip: the largest norm of one example's gradient; None: √dim/3 and at least 1, for a loss of xᵀw whose columns
            have mean square about 1, so that rows are about √dim long and few gradients are clipped after some rounds.
        rows: a bound on the 2-norm of the rows of X; None: 1.5·√dim for methods that need one, none for the others.
        neighbours: "replace" or "add-or-remove".
        sampler: "simulation" or "opendp".

    Example:
        >>> import foedus as fd, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(200, 2))
        >>> problem = fd.Problem([(x, x @ np.array([1.0, 2.0]))] * 2, loss=fd.losses.least_squares)
        >>> run = fd.solve(problem, fd.FedAvg(k0=1, lr=0.5), max_rounds=4, privacy=fd.Local(epsilon=2.0, delta=1e-5))
        >>> bool(1.99 < run.ledger.total(0, "tight") <= 2.0)
        True
    """

    epsilon: float
    delta: float = 0.0
    clip: float | None = None
    rows: float | None = None
    neighbours: str = "replace"
    sampler: str = "simulation"
    # (ε of one figure, how many) of Laplace releases before the training; they are part of the total
    before: tuple[tuple[float, int], ...] = field(default=(), metadata={"hidden": True})

    def __post_init__(self) -> None:
        for name in ("epsilon", "clip", "rows"):
            check(f"The {name!r} of {self.name}", getattr(self, name), gt=0, finite=True, none=name != "epsilon")
        check(f"The 'delta' of {self.name}", self.delta, ge=0, lt=1)
        for name, choices in (("neighbours", NEIGHBOURS), ("sampler", SAMPLERS)):
            check(f"The {name!r} of {self.name}", getattr(self, name), choices=choices)

    @property
    def name(self) -> str:
        """What messages call this way of stating a total."""
        return type(self).__name__

    def noise(self, releases: int, clip: float, rows: float | None = None) -> Sound:
        """Return the noise of one release, where no client releases more often than `releases` times."""
        rest: Json = {"clip": clip, "rows": rows, "neighbours": self.neighbours, "sampler": self.sampler}
        rest |= {"most": releases, "total": (float(self.epsilon), float(self.delta))}
        before = self._before()
        before_epsilon = tightest(before, self.delta)
        if not before_epsilon < self.epsilon:
            raise FoedusError(
                f"preparing the data spends epsilon {before_epsilon:.4g} of {self.epsilon:g}, which leaves nothing for "
                "the training; spend less on the preparation, or raise the total."
            )
        if self.delta == 0:
            return Laplace(epsilon=(self.epsilon - before_epsilon) / releases, **rest)
        ratio = self._ratio(releases, before)
        # One release is described by (ε, δ/releases). Another split of δ would describe the same noise, σ = 1/ratio.
        share = self.delta / releases
        return Gaussian(epsilon=gaussian_epsilon(1.0 / ratio, share), delta=share, **rest)

    def _before(self) -> dict[tuple[str, float], int]:
        # a figure that prepares the data costs the same for both neighbouring relations
        return {("laplace", ratio): count for ratio, count in tally_ratios(self.before).items()}

    def _ratio(self, releases: int, before: Mapping[tuple[str, float], int]) -> float:
        """Return the largest sensitivity/σ of Gaussian releases that keeps the total, by bisection."""
        most = self.epsilon * SAFETY

        def fits(ratio: float) -> bool:
            return tightest({**before, ("gaussian", ratio): releases}, self.delta) <= most

        low, high = 0.0, 1.0 / math.sqrt(releases)
        while fits(high):
            low, high = high, 2.0 * high
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def noise_for(self, problem: Problem, rounds: int, *, needs_rows: bool) -> Sound:
        """Return the noise for a run of so many rounds; `clip` and `rows` are chosen where the user left them out."""
        terms = problem.terms
        if self.clip is None and terms.loss is None:
            raise FoedusError(
                f"{self.name} needs clip, the largest norm of one example's gradient: for an objective of your own "
                "nobody else can know a useful one."
            )
        clip = usual_clip(terms.dim) if self.clip is None else float(self.clip)
        rows = None if self.rows is None else float(self.rows)
        if rows is None and terms.loss is not None and needs_rows:
            rows = ROWS_PER_LENGTH * terms.dim**0.5
        return self.noise(rounds, clip, rows)


def usual_clip(columns: int) -> float:
    """Return the usual clip: a third of the length of rows whose columns have mean square 1, and at least 1.

    A column of words counts once, however many words there are: its 0/1 columns make a row longer by one 1.
    """
    return max(1.0, columns**0.5 / 3.0)
