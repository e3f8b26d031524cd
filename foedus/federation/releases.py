"""What a run releases of a site's rows: what is still to come, what has left, and the release of a round."""

from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.federation.holdout import Holdout
from foedus.federation.policy import Refusal
from foedus.federation.site_ledger import Release, SiteLedger
from foedus.privacy.noise import Sound
from foedus.privacy.releasing import sound_noise
from foedus.protocol.algorithm import Algorithm, name_of


def count_of(ledger: SiteLedger, run: str) -> int:
    """Return how many rounds of a run are in the ledger."""
    return sum(line.run == run and line.what.startswith("round ") for line in ledger.lines)


def to_come(
    ledger: SiteLedger, run: str, algorithm: Algorithm, rounds: int, holdout: Holdout, roles: Json
) -> list[Release]:
    """Return the releases that a run may still ask for: those of its rounds, and of its evaluation."""
    noise, releases = sound_noise(algorithm), []
    if noise is not None:
        most = rounds if noise.most is None else min(rounds, noise.most)
        rows = holdout.rows("training", roles)
        one = Release("a round", noise.kind.lower(), 1.0, noise.multiplier, noise.neighbours, noise.delta, rows)
        releases = [one] * max(0, most - count_of(ledger, run))
    evaluation = holdout.release(holdout.rows("held-out", roles))
    if evaluation is None or any(line.run == run and line.what.startswith("evaluation") for line in ledger.lines):
        return releases
    return [*releases, evaluation]


def of_round(algorithm: Algorithm, noise: Sound, round: int, following: PyTree, rows: str) -> Release:
    """Return what a round releases, by the client's own record; refuse less noise than the experiment stated."""
    release = Release(
        f"round {round} of {name_of(algorithm)}{noise.ledger_note}",
        noise.kind.lower(),
        float(following.spent.sensitivity),
        float(following.spent.scale),
        noise.neighbours,
        noise.delta,
        rows,
    )
    promise = Release("", release.kind, 1.0, noise.multiplier, noise.neighbours)
    if not release.ratio <= promise.ratio * (1 + 1e-6):  # both are computed in floating point
        raise Refusal("policy", "the noise would be smaller than the experiment states")
    return release
