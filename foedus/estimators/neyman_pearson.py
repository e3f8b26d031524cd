"""The Neyman-Pearson classifier: the loss, or the miss rate, of one class is bounded at every site."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log
from typing import Any, Self

import numpy as np

from foedus.constraints import LossCap
from foedus.errors import FoedusError
from foedus.estimators import umbrella
from foedus.estimators.linear import LinearClassifierOverSites, Site
from foedus.terms import label


class NeymanPearsonClassifier(LinearClassifierOverSites):
    """A linear classifier with the least loss on one class whose loss on the other is capped at every site.

    Minimises the sites' mean of the logistic loss on the negatives, subject to a mean logistic loss on the positives of
    at most `max_loss` at EVERY site, over data that stays at the sites. `certificate_` says, site by site, what holds.

    With `max_miss_rate`, a part of each site's positives is kept out of training. From how many of them score below
    proposed thresholds, one threshold for all sites is then chosen by the umbrella rule of Tong, Feng and Li (2018), so
    that with probability `confidence` over the positives kept out, **the share of positives that `predict` misses is at
    most `max_miss_rate` at every site at once**. This assumes that a site's positives are independent draws from a law
    of that site, now and later; it assumes nothing about how sites differ. The module `umbrella` has the proof.

    Args:
        max_loss: the cap r on the mean logistic loss of the positives at each site. None takes
            log(2)·`max_miss_rate`: a miss at threshold ½ costs at least log 2, so training itself then keeps the share
            of misses among the positives it sees below `max_miss_rate`.
        max_miss_rate: the largest share of positives that may be called negative, in (0, 1); None for no such bound.
        confidence: the probability with which the bound holds, in (0, 1).
        holdout: the share of each site's positives that is kept out of training for the bound, in (0, 1).
        pos_label: the class whose loss is capped; `classes_[1]` when left out.
        fit_intercept: whether the model has an intercept.
        ridge: weight of the penalty (ridge/2)‖coef‖², which leaves the intercept out.
        beta: β of `fd.ProxAL`, the weight of its augmented Lagrangian; "auto" lets it grow.
        eps1: stationarity to reach.
        eps2: feasibility and complementarity to reach: a site's loss is at most max_loss + eps2.
        max_rounds: communication rounds of training at most.
        seed: decides which positives are kept out.

    Attributes:
        classes_: the two classes, sorted.
        pos_label_: the class whose loss is capped.
        max_loss_: the cap that was used.
        coef_, intercept_: of the log-odds of `classes_[1]`; shapes (1, features) and (1,).
        certificate_: the `Certificate` of the training problem; print it for a table of the sites.
        multipliers_: by site, the multiplier of its cap: how fast the objective falls as the cap there is raised.
        n_rounds_: communication rounds of training.
        run_: the `Run`, with its traffic and history.
        sites_: the names of the sites.
        threshold_: the probability of `pos_label_` from which on `predict` answers it; ½ without `max_miss_rate`.
        calibration_: the `Calibration` with the threshold, the held-out counts of each site, and the rounds and bytes
            it took; None without `max_miss_rate`.
        n_features_in_, feature_names_in_: as in scikit-learn.

    A fit whose certificate does not hold warns with a `ConvergenceWarning` that says which site's terms are not met.
    Probabilities are those of a model that weighs the two classes by the terms, not by how frequent they are.
    """

    def __init__(
        self,
        max_loss: float | None = 0.2,
        *,
        max_miss_rate: float | None = None,
        confidence: float = 0.95,
        holdout: float = 0.5,
        pos_label: Any = None,
        fit_intercept: bool = True,
        ridge: float = 0.0,
        beta: float | str = "auto",
        eps1: float = 1e-3,
        eps2: float = 1e-3,
        max_rounds: int = 10_000,
        seed: int = 0,
    ):
        self.max_loss = max_loss
        self.max_miss_rate = max_miss_rate
        self.confidence = confidence
        self.holdout = holdout
        self.pos_label = pos_label
        self.fit_intercept = fit_intercept
        self.ridge = ridge
        self.beta = beta
        self.eps1 = eps1
        self.eps2 = eps2
        self.max_rounds = max_rounds
        self.seed = seed

    def fit(self, X: Any, y: Any = None, *, sites: Any = None, server: Any = None) -> Self:
        """Train over sites.

        Args:
            X: a list, or a dict by name, of the sites' `(X, y)`; or one table (rows, features), with `y`.
            y: the labels of the table.
            sites: the name of the site of each row of the table; all rows are one site when left out.
            server: data of the server's own, `(X, y)`, on which the cap holds too.
        """
        self._check_settings()
        members = self._take_sites(X, y, sites, None, grouped=False)
        own = self._take_server(server, members, grouped=False)
        self._take_classes([*members, *own])
        known = self.classes_.tolist()
        if self.pos_label is not None and self.pos_label not in known:
            raise FoedusError(
                f"The 'pos_label' of {type(self).__name__} must be one of {known}. Got {self.pos_label!r}."
            )
        positive = known[1] if self.pos_label is None else self.pos_label
        members, own = ([replace(s, y=(s.y == positive).astype(float)) for s in part] for part in (members, own))
        self._check_classes_of(members, own, positive)
        cap = log(2.0) * (self.max_miss_rate or 0.0) if self.max_loss is None else float(self.max_loss)
        trained, held = self._split(members) if self.max_miss_rate is not None else (members, {})

        capped, other = label(1, str(positive)), label(0, str(next(c for c in known if c != positive)))
        constraints = [LossCap(capped, cap)] + [LossCap(capped, cap, scope="global") for _ in own]
        self._train(trained, own[0] if own else None, constraints, other)
        self.pos_label_, self.max_loss_ = positive, cap
        self.coef_, self.intercept_ = self._sign * self.coef_, self._sign * self.intercept_

        self.calibration_ = None
        if self.max_miss_rate is not None:
            scores = {name: self._sign * (x @ self.coef_[0] + self.intercept_[0]) for name, x in held.items()}
            self.calibration_ = umbrella.calibrate(scores, self.max_miss_rate, self.confidence)
        self.threshold_ = 0.5 if self.calibration_ is None else self.calibration_.threshold
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """The log-odds of `classes_[1]` for each row of X, less those at the threshold: the sign is the prediction."""
        odds = self._log_odds(X)
        return odds if self.calibration_ is None else odds - self._sign * self.calibration_.cut

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row of X; a row exactly at the threshold is of the class whose loss is capped."""
        margin = self.decision_function(X)
        second = margin >= 0 if self._sign > 0 else margin > 0
        return self.classes_[second.astype(int)]

    @property
    def _sign(self) -> float:
        """Turns log-odds of `classes_[1]` into those of the class whose loss is capped, and back."""
        return 1.0 if self.pos_label_ == self.classes_[1] else -1.0

    def _check_settings(self) -> None:
        super()._check_settings()
        self._check("max_miss_rate", gt=0, lt=1, optional=True)
        self._check("max_loss", gt=0, optional=self.max_miss_rate is not None)
        self._check("confidence", gt=0, lt=1)
        self._check("holdout", gt=0, lt=1)

    def _check_classes_of(self, members: Sequence[Site], own: Sequence[Site], positive: Any) -> None:
        negative = next(c for c in self.classes_.tolist() if c != positive)
        capped = [(site, 1.0, positive, "its loss cap") for site in (*members, *own)]
        for site, coded, name, what in capped + [(site, 0.0, negative, "its objective") for site in members]:
            if not np.any(site.y == coded):
                raise FoedusError(
                    f"site {site.name!r}: no example has class {name!r}, so {what} is undefined; "
                    "merge the site with another or leave it out."
                )

    def _split(self, sites: Sequence[Site]) -> tuple[list[Site], dict[str, np.ndarray]]:
        """The sites without the positives that are kept out, and these by site; refuses where they are too few."""
        trained, held = [], {}
        for site in sites:
            positives = np.flatnonzero(site.y == 1.0)
            # drawn from the site's own name, so that it does not depend on which other sites there are
            draw = np.random.default_rng([self.seed, zlib.crc32(site.name.encode())])
            out = draw.permutation(positives)[: min(ceil(self.holdout * len(positives)), len(positives) - 1)]
            kept = np.setdiff1d(np.arange(len(site.y)), out)
            trained.append(replace(site, x=site.x[kept], y=site.y[kept]))
            held[site.name] = site.x[out]
        assert self.max_miss_rate is not None
        umbrella.check_counts(
            {name: len(x) for name, x in held.items()},
            self.max_miss_rate,
            self.confidence,
            f"with holdout={self.holdout:g}, give the site more positives or merge it with another",
        )
        return trained, held
