"""The rounds of preprocessing at the server: what the sites are asked, and what their answers add up to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from foedus.base.errors import FoedusError
from foedus.data.masked_sums import InSums
from foedus.data.sums import NUMBER, Answers, FiguresRequest, Sums, about_the_mean


@dataclass(frozen=True)
class ColumnSums:
    """What the server knows after the rounds: sums over all sites, and the rounds and bytes that they took."""

    counts: dict[str, float]
    means: dict[str, float]
    squares: dict[str, float]
    ends: dict[str, tuple[float, float]]
    words: dict[str, tuple[str, ...]]
    rounds: int
    up: int
    down: int


def play_rounds(
    answers: Answers, request: FiguresRequest, twice: bool, noisy: Mapping[str, tuple[float, float]] | None
) -> ColumnSums:
    """Play the rounds; `noisy` are the bounds within which noisy means are kept."""
    rounds, up, down = 0, 0, 0
    if twice and noisy is None and not isinstance(answers, InSums):
        request = replace(request, spread=request.sums)
    replies = [Sums() for _ in range(answers.sites)]
    if request.sums or request.ranges or request.words:
        replies = answers.first(request)
        rounds, down, up = 1, request.nbytes * len(replies), sum(reply.nbytes for reply in replies)
    counts = {name: sum(reply.count[name] for reply in replies) for name in request.sums}
    for name in counts:
        if noisy is not None:
            counts[name] = max(counts[name], 1.0)
        elif counts[name] == 0:
            raise FoedusError(f"the column {name!r} has no value at any site; leave it out with drop in [data].")
    means = {name: sum(reply.total[name] for reply in replies) / counts[name] for name in request.sums}
    if noisy is not None:
        means = {name: float(np.clip(mean, *noisy[name])) for name, mean in means.items()}
    squares: dict[str, float] = {}
    if request.spread:
        squares = {name: about_the_mean(replies, name, mean) for name, mean in means.items()}
    elif twice and means:
        second = answers.second(means)
        squares = {name: sum(reply[name] for reply in second) for name in means}
        rounds, down, up = 2, down + NUMBER * len(means) * len(second), up + NUMBER * len(means) * len(second)
    if isinstance(answers, InSums):
        rounds, up, down = answers.rounds, answers.up, answers.down
    return ColumnSums(
        counts=counts,
        means=means,
        squares=squares,
        ends={n: (min(r.least[n] for r in replies), max(r.most[n] for r in replies)) for n in request.ranges},
        words={n: tuple(sorted({w for r in replies for w in r.words[n]})) for n in request.words},
        rounds=rounds,
        up=up,
        down=down,
    )
