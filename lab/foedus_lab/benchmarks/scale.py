"""How the cost of a round grows with the number of clients."""

import resource

import numpy as np

import foedus as fd
from foedus_lab.benchmarks.harness import Measurement, best
from foedus_lab.benchmarks.speed import Rounds


def clients(quick: bool) -> list[Measurement]:
    """Time a FedAvg round per client, with 10² to 10⁶ clients of 10 rows and dimension 20.

    Larger numbers of clients are compared with 10⁴ clients, since below that the fixed cost of a round matters.
    """
    lines: list[Measurement] = []
    reference = 0.0
    for power in range(2, 6 if quick else 7):
        n = 10**power
        rng = np.random.default_rng(0)
        x = rng.standard_normal((n, 10, 20))
        y = rng.standard_normal((n, 10))
        problem = fd.Problem(fd.data.Stacked({"x": x, "y": y}), loss=fd.losses.least_squares)
        del x, y
        rounds = Rounds(problem, fd.FedAvg(k0=5, lr=0.01, stop=None))
        many = max(1, 10**5 // n)
        per_client = best(lambda rounds=rounds, many=many: rounds.play(many), repeats=5) / many / n
        if power == 4:
            reference = per_client
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        line = Measurement(f"per client and round, {n:,} clients", per_client)
        line.extra = {"round": f"{per_client * n:.3g} s", "peak memory": f"{peak:.1f} GB"}
        if power > 4:
            line.against, line.reference = "that of 10,000 clients", reference
            line.limit = 1.5 if power == 6 else None
        lines.append(line)
        del problem, rounds
    return lines
