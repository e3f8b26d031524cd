"""The Neyman-Pearson classifier: at every site, the loss or the miss rate of one class is bounded."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Tags

from foedus.app.estimators.linear import LinearClassifierOverSites
from foedus.app.estimators.plain import PlainClassifier, columns_of, with_threshold
from foedus.app.estimators.rows import Site, SiteRows, Sites, WeightedMask, check_parameter, has_weights
from foedus.base.errors import FoedusError
from foedus.problem.constraints import LossCap
from foedus.problem.terms import label
from foedus.runtime.run import Run
from foedus.statistics import umbrella
from foedus.statistics.rates import Decision


class NeymanPearsonClassifier(LinearClassifierOverSites):
    """Fit a linear classifier of least loss on one class whose loss on the other is capped at every site.

    It minimises the sites' average of the mean logistic loss on the negatives, subject to the constraint that at EVERY
    site the mean logistic loss on the positives is at most `max_loss`. The data stay at the sites. `certificate_` shows
    for each site whether its constraint holds.

    With `max_miss_rate`, each site keeps a part of its positives out of training. The umbrella rule of Tong, Feng and
    Li (2018) then chooses one threshold for all sites, from counts of how many of these positives score below proposed
    thresholds. With probability `confidence` over the positives kept out, **the share of positives that `predict`
    misses is at most `max_miss_rate` at every site at once**. This assumes that the present and future positives of a
    site are independent draws from one distribution; it assumes nothing about how sites differ. The module `umbrella`
    has the proof.

    Args:
        max_loss: the cap r on the mean logistic loss of the positives at each site. None means
            log(2)·`max_miss_rate`: a miss at threshold ½ costs at least log 2, so with this cap the share of misses
            among the training positives is at most `max_miss_rate` too.
        max_miss_rate: the largest share of positives that may be called negative, in (0, 1); None means no such bound.
        confidence: the probability with which the bound holds, in (0, 1).
        holdout: the share of each site's positives that is kept out of training for the bound, in (0, 1).
        pos_label: the class whose loss is capped; None means `classes_[1]`.
        fit_intercept: whether the model has an intercept.
        ridge: weight of the penalty (ridge/2)‖coef‖², which leaves the intercept out.
        beta: "auto" trains with the algorithm that `fd.solve` chooses, `fd.InteriorPoint`; a number trains with
            `fd.ProxAL` and this weight β of its augmented Lagrangian.
        eps1: the stationarity at which training ends.
        eps2: the feasibility and complementarity at which training ends; a site's loss is then at most max_loss + eps2.
        max_rounds: the largest number of communication rounds of training.
        seed: the seed of the draw of positives that are kept out.

    Attributes:
        classes_: the two classes, sorted.
        pos_label_: the class whose loss is capped.
        max_loss_: the cap that was used.
        coef_, intercept_: the model of the log-odds of `classes_[1]`; shapes (1, features) and (1,).
        certificate_: the `Certificate` of the training problem; print it for a table of the sites.
        multipliers_: by site, the multiplier of its cap: how fast the objective falls as the cap there is raised.
        n_rounds_: the number of communication rounds of training.
        run_: the `Run`, with its traffic and history, and with the threshold as its `decision`; 1 stands for
            `pos_label_` in what it predicts.
        sites_: the names of the sites.
        threshold_: the least probability of `pos_label_` at which `predict` answers it; ½ without `max_miss_rate`.
        calibration_: the `Calibration` with the threshold, the held-out counts of each site, and the rounds and bytes
            it took; None without `max_miss_rate`.
        n_features_in_, feature_names_in_: as in scikit-learn.

    If the certificate does not hold, `fit` issues a `ConvergenceWarning` that names the largest violation and its site.
    The model weighs the two classes by the constraints and not by how frequent they are; read the output of
    `predict_proba` with that in mind. For the same reason there is no `class_weight`: each mean is over one class.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> draw = np.random.default_rng(0)
        >>> X = draw.normal(size=(240, 3))
        >>> y = np.where(X[:, 0] + draw.normal(size=240) > 0, "ill", "well")
        >>> hospital = np.repeat(["north", "south", "west"], 80)
        >>> model = fd.NeymanPearsonClassifier(max_loss=0.4, pos_label="ill").fit(X, y, sites=hospital)
        >>> model.certificate_.holds()
        True
        >>> max(row.value for row in model.certificate_.rows) <= 0.4 + model.eps2
        True
        >>> model.predict(X[:2]).shape
        (2,)
    """

    run_: Run

    # what `fit` asks for when scikit-learn routes metadata, unless set_fit_request says otherwise
    __metadata_request__fit: ClassVar = {"sites": True, "sample_weight": True}

    def __init__(
        self,
        max_loss: float | None = 0.2,
        *,
        max_miss_rate: float | None = None,
        confidence: float = 0.95,
        holdout: float = 0.5,
        pos_label: object = None,
        fit_intercept: bool = True,
        ridge: float = 0.0,
        beta: float | str = "auto",
        eps1: float = 1e-6,
        eps2: float = 1e-6,
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

    def fit(
        self,
        X: ArrayLike | Sites,
        y: ArrayLike | None = None,
        *,
        sites: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        server: SiteRows | None = None,
    ) -> Self:
        """Train the classifier over sites.

        Args:
            X: a list, or a dict by name, of the sites' `(X, y)`; or one table (rows, features), with `y`.
            y: the labels of the table.
            sites: the name of the site of each row of the table; without it, all rows are one site.
            sample_weight: the weight of each row of the table, in the mean losses of its class; the rule for the miss
                rate counts rows.
            server: the server's own data, `(X, y)`, on which the loss is capped too.

        Returns:
            The fitted classifier itself.
        """
        self._check_settings()
        members, own = self._take_sites(X, y, sites=sites, sample_weight=sample_weight, server=server)
        classes = self.classes_.tolist()
        if self.pos_label is not None and self.pos_label not in classes:
            raise FoedusError(
                f"The 'pos_label' of {type(self).__name__} must be one of {classes}. Got {self.pos_label!r}."
            )
        positive = classes[1] if self.pos_label is None else self.pos_label
        members, own = ([replace(s, y=(s.y == positive).astype(float)) for s in part] for part in (members, own))
        self._check_classes_of(members, own, positive)
        cap = log(2.0) * (self.max_miss_rate or 0.0) if self.max_loss is None else float(self.max_loss)
        training, holdout = self._split(members) if self.max_miss_rate is not None else (members, {})

        negative = next(c for c in classes if c != positive)
        positives, negatives = label(1, str(positive)), label(0, str(negative))
        capped = WeightedMask(positives) if has_weights(training) else positives
        constraints = [LossCap(capped, cap)] + [LossCap(capped, cap, scope="global") for _ in own]
        self._keep([self._train(training, own[0] if own else None, constraints, negatives)], bool(own))
        self.pos_label_, self.max_loss_ = positive, cap
        self.coef_, self.intercept_ = self._sign * self.coef_, self._sign * self.intercept_

        self.calibration_ = None
        if self.max_miss_rate is not None:
            scores = {name: self._sign * (x @ self.coef_[0] + self.intercept_[0]) for name, x in holdout.items()}
            self.calibration_ = umbrella.calibrate(scores, self.max_miss_rate, self.confidence)
            self.run_.decision = Decision.of(self.calibration_)
        self.threshold_ = 0.5 if self.calibration_ is None else self.calibration_.threshold
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return the log-odds of `classes_[1]` for each row, minus those at the threshold; the sign is the prediction.

        Args:
            X: a table, shape (rows, features).

        Returns:
            The differences, shape (rows,).
        """
        odds = self._scores(X)
        return odds if self.calibration_ is None else odds - self._sign * self.calibration_.cut

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the predicted class of each row; a row exactly at the threshold gets the class whose loss is capped.

        Args:
            X: a table, shape (rows, features).

        Returns:
            Entries of `classes_`, shape (rows,).
        """
        margin = self.decision_function(X)
        second = margin >= 0 if self._sign > 0 else margin > 0
        return self.classes_[second.astype(int)]

    def to_sklearn(self) -> PlainClassifier:
        model = super().to_sklearn()
        # a row exactly at the threshold gets the class whose loss is capped, as `predict` has it
        cut = 0.0 if self.calibration_ is None else self.calibration_.cut
        return with_threshold(model, cut, self.pos_label_, columns_of(self))

    @property
    def _sign(self) -> float:
        """The factor between the log-odds of `classes_[1]` and those of the class whose loss is capped."""
        return 1.0 if self.pos_label_ == self.classes_[1] else -1.0

    def _take_classes(self, sites: Sequence[Site]) -> None:
        super()._take_classes(sites)
        if len(self.classes_) > 2:
            raise FoedusError(
                "Only binary classification is supported. The type of the target is multiclass, "
                f"with {len(self.classes_)} classes."
            )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        assert tags.classifier_tags is not None
        tags.classifier_tags.multi_class = False
        return tags

    def _check_settings(self) -> None:
        super()._check_settings()
        check_parameter(self, "max_miss_rate", gt=0, lt=1, none=True)
        check_parameter(self, "max_loss", gt=0, none=self.max_miss_rate is not None)
        check_parameter(self, "confidence", gt=0, lt=1)
        check_parameter(self, "holdout", gt=0, lt=1)

    def _check_classes_of(self, members: Sequence[Site], own: Sequence[Site], positive: object) -> None:
        negative = next(c for c in self.classes_.tolist() if c != positive)
        # the server's own data have a cap but no part in the objective, so they need no negatives
        uses = [(site, 1.0, positive, "its loss cap") for site in (*members, *own)]
        uses += [(site, 0.0, negative, "its objective") for site in members]
        for site, code, name, what in uses:
            if not np.any(site.y == code):
                raise FoedusError(
                    f"site {site.name!r}: no example has class {name!r}, so {what} is undefined; "
                    "merge the site with another or leave it out."
                )

    def _split(self, sites: Sequence[Site]) -> tuple[list[Site], dict[str, np.ndarray]]:
        """Return the training rows of all sites, and the held-out positives by site, which must be enough."""
        training, holdout = [], {}
        for site in sites:
            positives = np.flatnonzero(site.y == 1.0)
            # the seed contains the site's name, so the draw does not depend on which other sites there are
            draw = np.random.default_rng([self.seed, zlib.crc32(site.name.encode())])
            out = draw.permutation(positives)[: min(ceil(self.holdout * len(positives)), len(positives) - 1)]
            rest = np.setdiff1d(np.arange(len(site.y)), out)
            training.append(site.rows(rest))
            holdout[site.name] = site.x[out]
        assert self.max_miss_rate is not None
        umbrella.check_counts(
            {name: len(x) for name, x in holdout.items()},
            self.max_miss_rate,
            self.confidence,
            f"with holdout={self.holdout:g}, give the site more positives or merge it with another",
        )
        return training, holdout
