"""What masked sums cost: masking at a site, unmasking at the server, a secure round beside a plain one on loopback."""

import itertools
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import foedus as fd
from foedus.federation.flare.trial import Federation
from foedus.federation.order import order_of
from foedus.sums.play import exchange_keys, trial_identities
from foedus.sums.server import MaskedSum
from foedus.sums.site import MaskingSite
from foedus_lab.benchmarks.federation import DIM, WARM_UP, little
from foedus_lab.benchmarks.harness import Measurement, best

SITES, NUMBERS = 50, 10**4
LIMIT = 0.005  # seconds of masking at one site
RATIO = 2.0  # a secure round against a plain one
TURNS = 3  # runs of each kind, one after the other in turn


def secure(quick: bool) -> list[Measurement]:
    """Measure masking at one site, unmasking at the server, and a round over real sites."""
    if find_spec("cryptography") is None:
        return []
    sites = {name: MaskingSite(identity) for name, identity in trial_identities(_names(SITES)).items()}
    exchange_keys(sites, "bench")
    words = np.arange(NUMBERS)
    rounds = iter(range(10**6))
    one = next(iter(sites.values()))

    def mask() -> None:
        one.mask(MaskedSum("bench", 0, next(rounds), 0, sites, NUMBERS).order, words)

    masking = best(mask, 5 if quick else 15)
    last = MaskedSum("bench", 0, next(rounds), 0, sites, NUMBERS)
    for name, site in sites.items():
        last.take(name, site.mask(last.order, words))
    for name, order in last.reveal_orders().items():
        last.take_reveal(name, sites[name].reveal(order))
    up = len(last.vectors[one.site].to_bytes()) + len(last.reveals[one.site].to_bytes())
    what = f"masking {NUMBERS} numbers, {SITES} sites"
    lines = [Measurement(what, masking, "a second", 1.0, LIMIT, extra={"bytes over plain": f"{up / 8 / NUMBERS:.3f}"})]
    lines.append(Measurement("unmasking their sum at the server", best(last.total, 3)))
    return lines + (_rounds(quick) if find_spec("nvflare") is not None else [])


def _names(count: int) -> Iterable[str]:
    return (f"site-{i:03d}" for i in range(count))


def _rounds(quick: bool) -> list[Measurement]:
    """Measure the median round over five real sites with masked sums and without, in turn; the faster of three each."""
    algorithm, count = fd.LocalSGD(k0=1, batch=1, lr=1e-3), 40 if quick else 150
    problem = little(5).over(np.zeros(DIM))
    paces: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="foedus-") as folder:
        federation = Federation.up(Path(folder), 5)
        try:
            for turn, is_secure in itertools.product(range(TURNS), paces):
                order = order_of(
                    problem, algorithm, np.zeros(DIM), run=f"bench-{is_secure}-{turn}", sites=federation.sites, seed=0,
                    max_rounds=count, participation=fd.Fraction(), secure=is_secure,
                )  # fmt: skip
                result = fd.Flare(at=folder).run(federation, order, problem)
                paces[is_secure].append(float(np.median(result.pace[WARM_UP:])))
        finally:
            federation.down()
    seconds, plain = min(paces[True]), min(paces[False])
    return [Measurement("a secure round over 5 real sites", seconds, "a plain round", plain, limit=RATIO)]
