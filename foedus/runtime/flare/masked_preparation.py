"""Preparation of the sites' tables from masked sums: counts, sums, squares and words, of which the server sees totals.

Up to three sums. `words`: the values of label and group. `sums`: counts and sums of columns of numbers, and the words
of the others. `squares`: squared deviations. Words are summed as tables (`foedus.secure.words`), other figures as
limbs, so that numbers of any size are exact to 2^-60. Each sum is bound to a round of its own behind those of the run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np

from foedus.data.sites import Cohort, Roles, groups_of, in_order, labels_of
from foedus.data.sums import FiguresRequest, Sums
from foedus.errors import FoedusError
from foedus.evaluation.summed import LIMBS, joined, limbs
from foedus.files import Json
from foedus.runtime.flare.exchange import HEADERS, Exchange, Paused
from foedus.runtime.masking import Masking, check_clipped
from foedus.secure.fixed_point import FixedPoint
from foedus.secure.words import WordTable

ROUNDS = {"words": 2, "sums": 3, "squares": 4}  # behind the run's rounds, its measurement and its evaluation
AddUp = Callable[[str, int, Json, int], np.ndarray | None]
"""Asks all sites for their words of a sum: the message, its round, its header, the words of a vector."""


def masking_for(sites: int) -> Masking:
    """Return the integers of these sums."""
    return Masking(FixedPoint(terms=sites)).measuring


def _shape(shape: tuple[int, ...]) -> np.ndarray:
    return np.empty(shape)


class MaskedFigures:
    """The figures of a preparation as trees of numbers that are added up; all parties work out the same trees.

    `most` is how many words a column may have.
    """

    def __init__(self, run: str, most: int):
        self.run, self.most = run, most

    def table(self, name: str) -> WordTable:
        return WordTable(self.most, f"{self.run}\n{name}")

    def layout(self, numbers: int, words: Sequence[str]) -> list[np.ndarray]:
        """Return arrays of the shapes of a sum of so many numbers, and of the words of these columns."""
        return [_shape((LIMBS, numbers)), *(_shape(self.table(name).shape) for name in words)]

    def tree(self, numbers: Sequence[float], words: Mapping[str, Sequence[str]]) -> list[np.ndarray]:
        """Return what a site adds to a sum."""
        return [limbs(np.array(numbers, float)), *(self.table(name).write(own) for name, own in words.items())]

    def read(self, total: list[np.ndarray], words: Sequence[str]) -> tuple[np.ndarray, dict[str, tuple[str, ...]]]:
        """Return the numbers and the words of a sum."""
        columns = {}
        for name, table in zip(words, total[1:], strict=True):
            try:
                columns[name] = tuple(sorted(self.table(name).read(table)))
            except FoedusError as error:
                raise FoedusError(
                    f"column {name!r}: {str(error).removesuffix('.')}; leave it out with drop in [data], raise "
                    "max_categories, or state its words in [preprocess.categories]."
                ) from None
        return joined(total[0]), columns


class MaskedApart:
    """The sites' answers as masked sums, in the form in which `foedus.data.preprocess` asks for them."""

    def __init__(self, exchange: Exchange, add_up: AddUp, noise: Json | None, max_rounds: int, figures: MaskedFigures):
        self.exchange, self.add_up, self.noise, self.max_rounds = exchange, add_up, noise, max_rounds
        self.figures, self.masking = figures, masking_for(len(exchange.client))
        self.values: dict[str, tuple[str, ...]] = {}  # of label and group, which are known before the others are asked

    @property
    def sites(self) -> int:
        return len(self.exchange.client)

    def values_of(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the values of these columns over all sites."""
        if names:
            _, self.values = self._sum("words", {"columns": {"words": list(names)}}, 0, names)
        return self.values

    def first(self, request: FiguresRequest) -> list[Sums]:
        if request.ranges:
            raise FoedusError(
                "[preprocess] scale = 'minmax': the least and the greatest value are no sums, and with secure = true "
                "the server sees sums alone; state bounds in [preprocess], or take scale = 'standard'."
            )
        words = [name for name in request.words if name not in self.values]
        numbers = np.zeros(2 * len(request.sums))
        columns = dict(self.values)
        if request.sums or words:
            ask = replace(request, words=tuple(words))
            header = {"columns": asdict(ask), "noise": self.noise}
            numbers, more = self._sum("sums", header, 2 * len(request.sums), words)
            columns |= more
        counts, totals = np.split(numbers, 2)
        none = dict.fromkeys(request.sums, 0.0)
        total = Sums(
            count=dict(zip(request.sums, map(float, counts), strict=True)),
            total=dict(zip(request.sums, map(float, totals), strict=True)),
            words={name: columns[name] for name in request.words},
        )
        nothing = Sums(count=none, total=none, words=dict.fromkeys(request.words, ()))
        return [total, *([nothing] * (self.sites - 1))]  # what one site has sent nobody knows: the first stands for all

    def second(self, means: Mapping[str, float]) -> list[dict[str, float]]:
        names = sorted(means)
        numbers, _ = self._sum("squares", {"means": dict(means)}, len(names), ())
        total = dict(zip(names, map(float, numbers), strict=True))
        return [total, *([dict.fromkeys(names, 0.0)] * (self.sites - 1))]

    def _sum(
        self, ask: str, header: Json, numbers: int, words: Sequence[str]
    ) -> tuple[np.ndarray, dict[str, tuple[str, ...]]]:
        layout = self.figures.layout(numbers, words)
        size = self.masking.size(layout)
        self.exchange.most = 8 * size + HEADERS * 3
        content = self.add_up(ask, self.max_rounds + ROUNDS[ask], header, size)
        if content is None:
            raise Paused(f"the sum of the sites' {ask} could not be unmasked")
        total, clip_count, broken_count = self.masking.tree_of(content, layout)
        check_clipped(self.masking, clip_count)
        if broken_count:
            raise FoedusError(
                f"{broken_count} of the sites have a column with numbers too large to add up; rescale it."
            )
        return self.figures.read(total, words)


def with_values(cohort: Cohort, roles: Roles, values: Mapping[str, tuple[str, ...]]) -> Cohort:
    """Return the cohort with the values of label and group that a masked sum has told."""
    labels = labels_of(in_order({*values.get(roles.label, ())}), roles) if roles.classification else ()
    groups = () if roles.group is None else groups_of(in_order({*values.get(roles.group, ())}), roles)
    return replace(cohort, roles=roles, labels=labels, groups=groups)
