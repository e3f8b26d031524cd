"""Holdout: which rows sites keep out of training, and what they tell about them; stated before any data are read.

The server states shares of a site's rows, and never which rows: a site draws them from a secret that it makes once and
keeps in its folder. Whoever could choose rows, by a seed, would learn from sums over the others what is in them. Equal
shares give equal rows in every run, and there are few shares to ask for, so that no two sums over many rows differ by
a few.
"""

import hashlib
import hmac
import json
import math
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.data.holdout import Shares
from foedus.federation.policy import Policy, Refusal
from foedus.federation.site_ledger import Release
from foedus.privacy.noise import gaussian_multiplier
from foedus.statistics.noisy import EvaluationNoise
from foedus.statistics.rates import KINDS, RateTerm, check_terms

SECRET = "split.secret"  # the file in a site's folder from which its rows are drawn
LEAST_SHARE, MOST_SHARE = 0.05, 0.5  # of a site's rows that may be kept out for one purpose
SHARES = f"the share of rows to hold out must be whole hundredths, from {LEAST_SHARE:g} to {MOST_SHARE:g}"


@dataclass(frozen=True)
class Holdout:
    """What a run says about rows that take no part in training; false where there are none.

    Attributes:
        shares: the shares of rows to evaluate the model on, and to choose a threshold by.
        noise: what the figures spend of each row that is held out; None where they are exact.
        rates: the terms on rates, for which the threshold is chosen.
    """

    shares: Shares = field(default_factory=Shares)
    noise: EvaluationNoise | None = None
    rates: tuple[RateTerm, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shares)

    @property
    def evaluates(self) -> bool:
        """Whether the sites evaluate the last model."""
        return self.shares.evaluate > 0

    def to_json(self) -> Json | None:
        """Return what the sites are told; None where nothing is kept out."""
        if not self:
            return None
        noise = None if self.noise is None else {"epsilon": self.noise.epsilon, "delta": self.noise.delta}
        rates = [{"type": r.name, "at_most": r.at_most, "confidence": r.confidence} for r in self.rates]
        rates = [one | ({"skip": r.skip} if r.skip else {}) for one, r in zip(rates, self.rates, strict=True)]
        shares = {"share": self.shares.evaluate, "threshold": self.shares.threshold}
        return shares | {"noise": noise, "rates": rates}

    @staticmethod
    def from_json(record: object) -> "Holdout":
        """Read what `to_json` wrote, from a party that is not trusted."""
        if record is None:
            return Holdout()
        if not isinstance(record, dict):
            raise Refusal("unknown", "the rows to hold out must be stated as a share")
        share, threshold = record.get("share"), record.get("threshold", 0.0)
        if not (is_share(share) and is_share(threshold) and (share or threshold)):
            raise Refusal("unknown", SHARES)
        try:
            stated = record.get("noise")
            limits = None if stated is None else (_number(stated, "epsilon"), _number(stated, "delta"))
            noise = None if limits is None else EvaluationNoise(*limits, "opendp")
            rates = tuple(_rate(one) for one in record.get("rates", ()))
            check_terms(rates)
        except (FoedusError, TypeError, ValueError, KeyError) as error:
            raise Refusal("unknown", f"what is stated about rows to hold out is wrong: {error}") from None
        return Holdout(Shares(share, threshold, by_class=noise is None), noise, rates)

    def check(self, policy: Policy, is_private: bool) -> None:
        """Refuse what a policy does not let leave; `is_private` says that the rounds have noise."""
        if not self:
            return
        if not policy.evaluate:
            raise Refusal("policy", "its policy (evaluate) lets no figures of rows leave that are held out of training")
        if policy.limits_privacy and (self.noise is None or self.rates):
            raise Refusal("policy", "its policy asks for privacy, and an evaluation would send exact figures")
        if is_private and (self.noise is None or self.rates):
            raise Refusal("unknown", "the rounds are private, and an evaluation would send exact figures")
        if bool(self.shares.threshold) != bool(self.rates):
            raise Refusal("unknown", "rows are kept out for a threshold, and no rate is stated that it is for")

    def rows(self, part: str, roles: Json) -> str:
        """Return how the ledger calls the rows of a part, "training" or "held-out"; empty where all count as one.

        The name holds a digest of all that decides which rows these are, beside the table itself.
        """
        if self.noise is None:
            return ""
        digest = hashlib.sha256(json.dumps([self.to_json(), roles], sort_keys=True).encode()).hexdigest()[:12]
        return f"{part} rows of split {digest}"

    def release(self, rows: str) -> Release | None:
        """Return one release that costs what all releases of the evaluation cost together."""
        if self.noise is None:
            return None
        noise = self.noise
        scale = gaussian_multiplier(noise.epsilon, noise.delta) if noise.delta else 1.0 / noise.epsilon
        return Release("evaluation", noise.kind, 1.0, scale, delta=noise.delta, rows=rows)


def is_share(value: object) -> TypeGuard[float]:
    """Return whether a site may be asked to keep this share of its rows out; 0 is none."""
    return isinstance(value, float) and (
        value == 0 or (LEAST_SHARE <= value <= MOST_SHARE and value == round(value, 2))
    )


def seeded(shares: Shares, folder: Path) -> Shares:
    """Return the shares with the site's own seed, which its secret and the shares decide; the secret is made once."""
    return replace(shares, seed=drawn(folder, json.dumps([shares.evaluate, shares.threshold, shares.by_class])))


def drawn(folder: Path, purpose: str) -> int:
    """Return the site's own random number for a purpose: its secret decides it, and nobody else knows it."""
    path = folder / SECRET
    if not path.exists():
        write_whole(path, secrets.token_bytes(32), private=True)
    return int.from_bytes(hmac.digest(path.read_bytes(), purpose.encode(), "sha256"), "big")


def _number(record: Json, name: str) -> float:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FoedusError(f"{name} must be a number")
    return float(value)


def _rate(record: Json) -> RateTerm:
    numbers = {name: _number(record, name) for name in ("at_most", "confidence")}
    return KINDS[record["type"]](**numbers, skip=str(record.get("skip", "")))
