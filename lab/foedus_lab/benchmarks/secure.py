"""What masked sums cost: masking and checking at a site, unmasking at the server, rounds of each kind on loopback."""

import itertools
import tempfile
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import foedus as fd
from foedus.base.engine import float64
from foedus.federation import packing
from foedus.federation.flare.trial import Federation
from foedus.federation.order import Patience, order_of, site_arrays
from foedus.federation.policy import Policy, SiteFile, Source
from foedus.federation.server import ServerSession
from foedus.federation.site import SiteSession
from foedus.protocol.algorithm import Algorithm, name_of
from foedus.sums.masking import by_sums
from foedus.sums.play import exchange_keys, trial_identities
from foedus.sums.server import MaskedSum
from foedus.sums.site import MaskingSite
from foedus_lab.benchmarks.federation import DIM, WARM_UP, little
from foedus_lab.benchmarks.harness import Measurement, best

SITES, NUMBERS = 50, 10**4
LIMIT = 0.005  # seconds of masking at one site
RATIO = 2.0  # a masked round against a plain one
CHECKED_RATIO = 2.5  # a checked round against a masked one
CPU = 0.010  # seconds of one site in a checked round of CHECKED_SITES sites with CHECKED_DIM columns
CHECKED_SITES, CHECKED_DIM, CHECKED_ROWS = 10, 30, 200
TURNS = 3  # runs of each kind, one after the other in turn


def secure(quick: bool) -> list[Measurement]:
    """Measure masking at one site, unmasking at the server, and a round over real sites."""
    if find_spec("cryptography") is None:
        return []
    sites = {name: MaskingSite(identity) for name, identity in trial_identities(_names(SITES)).items()}
    exchange_keys(sites, "bench")
    words = np.arange(NUMBERS)
    numbers = iter(range(10**6))
    one = next(iter(sites.values()))

    def mask() -> None:
        one.mask(MaskedSum("bench", 0, next(numbers), 0, sites, NUMBERS).order, words)

    masking = best(mask, 5 if quick else 15)
    last = MaskedSum("bench", 0, next(numbers), 0, sites, NUMBERS)
    for name, site in sites.items():
        last.take(name, site.mask(last.order, words))
    for name, order in last.reveal_orders().items():
        last.take_reveal(name, sites[name].reveal(order))
    up = len(last.vectors[one.site].to_bytes()) + len(last.reveals[one.site].to_bytes())
    what = f"masking {NUMBERS} numbers, {SITES} sites"
    lines = [Measurement(what, masking, "a second", 1.0, LIMIT, extra={"bytes over plain": f"{up / 8 / NUMBERS:.3f}"})]
    lines.append(Measurement("unmasking their sum at the server", best(last.total, 3)))
    for algorithm in (fd.FedAvg(k0=1, lr=0.01), fd.InteriorPoint()):
        what = f"a checked round of {name_of(algorithm)}, CPU of one of {CHECKED_SITES} sites, d = {CHECKED_DIM}"
        with_masks = site_seconds(algorithm, is_checked=False)
        extra: dict[str, object] = {"masked alone": f"{with_masks:.4f}"}
        lines.append(Measurement(what, site_seconds(algorithm), "a second", 1.0, CPU, extra=extra))
    return lines + (loopback_rounds(quick) if find_spec("nvflare") is not None else [])


@float64()
def site_seconds(algorithm: Algorithm, is_checked: bool = True, max_rounds: int = 20) -> float:
    """Return the processor's seconds of one site in a round: all sites are played in this process."""
    draw, names = np.random.default_rng(0), tuple(f"site-{i:02d}" for i in range(CHECKED_SITES))
    rows = {name: draw.normal(size=(CHECKED_ROWS, CHECKED_DIM)) for name in names}
    data = {name: (X, (X[:, 0] + draw.normal(size=CHECKED_ROWS) > 0).astype(float)) for name, X in rows.items()}
    start = np.zeros(CHECKED_DIM)
    problem = fd.Problem(data, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1)).over(start)
    fit = by_sums(algorithm).fit(problem)
    order = order_of(
        fit.problem, fit.algorithm, start, run="bench", sites=names, seed=0, max_rounds=max_rounds,
        participation=fd.Fraction(), secure=True, verify=is_checked,
    )  # fmt: skip
    policy, seconds = Policy(min_subset=1, verify=False), dict[str, list[float]]()
    with tempfile.TemporaryDirectory(prefix="foedus-") as place:
        folder, sites = Path(place), {}
        for i, (name, identity) in enumerate(trial_identities(names).items()):
            file = folder / f"{name}.npz"
            np.savez(file, **site_arrays(problem, i))  # pyright: ignore[reportArgumentType]
            sites[name] = SiteSession(name, SiteFile(Source(file), policy), folder / name, identity=identity)

        def ask(messages: Mapping[str, bytes], timeout: float) -> dict[str, object]:
            replies: dict[str, object] = {}
            for name, message in messages.items():
                tick = time.process_time()
                replies[name] = sites[name].answer(message)
                seconds.setdefault(str(packing.unseal(message)[0]["ask"]), []).append(time.process_time() - tick)
            return replies

        ServerSession(order, folder / "server", ask, Patience(keep_every=float("inf"))).play()
    return sum(float(np.median(seconds[kind])) for kind in ("round", "reveal", "total") if kind in seconds)


def _names(count: int) -> Iterable[str]:
    return (f"site-{i:03d}" for i in range(count))


def loopback_rounds(quick: bool) -> list[Measurement]:
    """Measure the median round over five real sites of each kind, in turn; the faster of three each."""
    algorithm, count = fd.LocalSGD(k0=1, batch=1, lr=1e-3), 40 if quick else 150
    problem = little(5).over(np.zeros(DIM))
    kinds = {"plain": (False, False), "masked": (True, False), "checked": (True, True)}
    paces: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="foedus-") as folder:
        federation = Federation.up(Path(folder), 5)
        try:
            for turn, kind in itertools.product(range(TURNS), kinds):
                is_secure, is_checked = kinds[kind]
                order = order_of(
                    problem, algorithm, np.zeros(DIM), run=f"bench-{kind}-{turn}", sites=federation.sites, seed=0,
                    max_rounds=count, participation=fd.Fraction(), secure=is_secure, verify=is_checked,
                )  # fmt: skip
                result = fd.Flare(at=folder, verify=False).run(federation, order, problem)
                paces[kind].append(float(np.median(result.pace[WARM_UP:])))
        finally:
            federation.down()
    plain, with_masks, with_checks = (min(paces[kind]) for kind in kinds)
    return [
        Measurement("a masked round over 5 real sites", with_masks, "a plain round", plain, limit=RATIO),
        Measurement(
            "a checked round over 5 real sites", with_checks, "a masked round", with_masks, limit=CHECKED_RATIO
        ),
    ]
