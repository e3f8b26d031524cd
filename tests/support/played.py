"""Rounds of the simulator with the states that they end in, for tests that look inside."""

import numpy as np

import foedus as fd
from foedus.protocol.algorithm import Algorithm
from foedus.protocol.participation import as_participation
from foedus.runtime.simulate import PlayedRounds, play_rounds
from foedus.runtime.spine import prepare


def rounds_played(
    problem: fd.Problem, algorithm: Algorithm, *, max_rounds: int, seed: int = 0, participation=1.0, w0=None
) -> PlayedRounds:
    """So many rounds, from zero where no start is given."""
    w0 = np.zeros(problem.terms.dim) if w0 is None else w0
    who = as_participation(participation)
    return play_rounds(prepare(problem, algorithm, w0=w0, seed=seed, max_rounds=max_rounds, participation=who))
