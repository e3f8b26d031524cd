"""Local: a total ε and δ for each client over a whole run, and the noise of each release that keeps within it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from foedus.errors import FoedusError
from foedus.files import Json
from foedus.privacy.composition import gaussian_epsilon, tally_ratios, tightest
from foedus.privacy.noise import NEIGHBOURS, SAMPLERS, Gaussian, Laplace, Sound
from foedus.terms import Terms

ROUNDS = 40
"""The rounds of a run with a total where nothing else is asked for."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """This much privacy for each client over the whole run; each client adds noise to what it sends.

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
        for name, least, most in (("epsilon", ">", math.inf), ("delta", ">=", 1.0), ("clip", ">", math.inf),
                                  ("rows", ">", math.inf)):  # fmt: skip
            value: object = getattr(self, name)
            if value is None and name in ("clip", "rows"):
                continue
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
            if not (number > 0 or (number == 0 and least == ">=")) or not number < most:
                upper = f" and < {most:g}" if most < math.inf else ""
                other = " or None" if name in ("clip", "rows") else ""
                raise FoedusError(
                    f"The {name!r} of Local must be a number {least} 0{upper}{other}. Got {value!r} instead."
                )
        for name, choices in (("neighbours", NEIGHBOURS), ("sampler", SAMPLERS)):
            if getattr(self, name) not in choices:
                words = " or ".join(map(repr, choices))
                raise FoedusError(f"The {name!r} of Local must be {words}. Got {getattr(self, name)!r} instead.")

    def noise(self, releases: int, clip: float, rows: float | None = None) -> Sound:
        """The noise of one of so many releases, and no client releases more often."""
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
        # as (ε, δ/releases) of one release; how a release is named does not matter, for its noise is 1/ratio either way
        share = self.delta / releases
        return Gaussian(epsilon=gaussian_epsilon(1.0 / ratio, share), delta=share, **rest)

    def _before(self) -> dict[tuple[str, float], int]:
        # what prepares the data costs the same for both relations
        return {("laplace", ratio): count for ratio, count in tally_ratios(self.before).items()}

    def _ratio(self, releases: int, before: Mapping[tuple[str, float], int]) -> float:
        """The largest sensitivity/σ of Gaussian releases that keeps within the total, by bisection."""
        most = self.epsilon * (1.0 - 1e-9)  # below ε, so that rounding does not lift the total above it

        def fits(ratio: float) -> bool:
            return tightest({**before, ("gaussian", ratio): releases}, self.delta) <= most

        low, high = 0.0, 1.0 / math.sqrt(releases)
        while fits(high):
            low, high = high, 2.0 * high
        for _ in range(48):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def noise_for(self, terms: Terms, rounds: int, *, needs_rows: bool) -> Sound:
        """The noise for so many rounds on these terms, with clip and rows chosen where they are left open."""
        if self.clip is None and terms.loss is None:
            raise FoedusError(
                "Local needs clip, the largest norm of one example's gradient: for an objective of your own nobody "
                "else can know a useful one."
            )
        clip = usual_clip(terms.dim) if self.clip is None else float(self.clip)
        rows = None if self.rows is None else float(self.rows)
        if rows is None and terms.loss is not None and needs_rows:
            rows = 1.5 * terms.dim**0.5
        return self.noise(rounds, clip, rows)


def usual_clip(columns: int) -> float:
    """A third of the length that rows of so many columns of mean square 1 have, and at least 1.

    A column of words counts once, however many words there are: its 0/1 columns make a row longer by one 1.
    """
    return max(1.0, columns**0.5 / 3.0)
