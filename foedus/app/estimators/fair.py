"""The fair classifier: at every site, the losses or the rates of any two groups differ by no more than a chosen gap.

A rate is a mean of 0 and 1, which no derivative sees. In training it is replaced by the mean of a sigmoid of the score,
three times as steep as the probability itself. Afterwards the sites count how many rows of each group and class lie in
each cell of the scores; from the sum of these counts follows what every threshold would do.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from foedus.algorithms import InteriorPoint
from foedus.app.estimators.linear import LinearClassifierOverSites
from foedus.app.estimators.plain import PlainClassifier, columns_of, with_threshold
from foedus.app.estimators.rows import (
    ClassWeight,
    Site,
    SiteRows,
    Sites,
    WeightedMask,
    are_sites,
    check_parameter,
    distinct,
    has_weights,
    merge_copies,
    one_per_row,
    weigh_classes,
    with_all_weights,
)
from foedus.base.errors import FoedusError
from foedus.problem.constraints import LossGap
from foedus.problem.losses import Loss, as_loss
from foedus.problem.terms import Data, Mask
from foedus.problem.terms import group as in_group
from foedus.statistics.tally import CELLS, LIMIT, STEP

STEEPNESS = 3.0  # of the sigmoids, in units of the log-odds
EDGES = np.append(np.arange(CELLS) * STEP - LIMIT, np.inf)  # thresholds: the lower ends of the cells, and none at all


def error_rate(z: Array, y: Array) -> Array:
    """A smooth form of the share of wrong answers."""
    return jax.nn.sigmoid(-STEEPNESS * (2.0 * y - 1.0) * z)


def selection_rate(z: Array, y: Array) -> Array:
    """A smooth form of the share of positive answers."""
    return jax.nn.sigmoid(STEEPNESS * z)


def miss_rate(z: Array, y: Array) -> Array:
    """A smooth form of the share of missed positives, over positives."""
    return jax.nn.sigmoid(-STEEPNESS * z)


SURROGATES: dict[str, Loss] = {
    "error": as_loss(error_rate),
    "selection": as_loss(selection_rate),
    "miss": as_loss(miss_rate),
}


@dataclass(frozen=True)
class Positives:
    """The rows of a subset whose label is 1."""

    mask: Mask

    def __call__(self, data: Data) -> Array:
        return self.mask(data) * jnp.where(data["y"] == 1.0, 1.0, 0.0)

    def __str__(self) -> str:
        return f"positives of {self.mask}"


@dataclass(frozen=True)
class ScoreCounts:
    """The weight of the rows of each group and class in each cell of the scores, (groups, 2, cells); they add up."""

    weight: np.ndarray

    @staticmethod
    def of(site: Site, scores: np.ndarray, groups: int) -> "ScoreCounts":
        """Count a site's own rows, whose labels are 0 and 1 and whose groups are numbers."""
        assert site.group is not None
        cell = np.clip(np.floor((scores + LIMIT) / STEP), 0, CELLS - 1).astype(int)
        place = (site.group.astype(int) * 2 + site.y.astype(int)) * CELLS + cell
        weight = np.bincount(place, weights=site.weight, minlength=groups * 2 * CELLS)
        return ScoreCounts(weight.reshape(groups, 2, CELLS).astype(float))

    def __add__(self, other: "ScoreCounts") -> "ScoreCounts":
        return ScoreCounts(self.weight + other.weight)

    def figures(self, of: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the wrong answers of each group and its rate for each threshold of `EDGES`. (groups, edges) each"""
        above = np.cumsum(self.weight[:, :, ::-1], axis=2)[:, :, ::-1]
        chosen = np.concatenate([above, np.zeros((len(above), 2, 1))], axis=2)
        total = self.weight.sum(axis=2)
        wrong = total[:, 1:] - chosen[:, 1] + chosen[:, 0]
        parts = {
            "error": (wrong, total.sum(axis=1)),
            "selection": (chosen.sum(axis=1), total.sum(axis=1)),
            "miss": (total[:, 1:] - chosen[:, 1], total[:, 1]),
        }
        count, among = parts[of]
        return wrong, count / np.maximum(among, 1e-300)[:, None]


def common_cut(counts: ScoreCounts, of: str, max_gap: float) -> float:
    """Return the threshold for all groups with the fewest wrong answers whose gap is allowed; else the least gap."""
    wrong, rate = counts.figures(of)
    gap, errors = np.ptp(rate, axis=0), wrong.sum(axis=0)
    allowed = gap <= max_gap
    best = np.argmin(np.where(allowed, errors, np.inf)) if allowed.any() else np.argmin(gap)
    return float(EDGES[best])


def group_cuts(counts: ScoreCounts, of: str, max_gap: float) -> list[float]:
    """Return thresholds by group with the fewest wrong answers in all whose rates differ by no more than the gap.

    Some window [r, r + gap] holds all rates. For each r that is a rate of some group at some threshold, each group
    takes the threshold with the fewest wrong answers among those within the window.
    """
    wrong, rate = counts.figures(of)
    best, cuts = np.inf, [0] * len(wrong)
    for low in np.unique(rate):
        inside = (rate >= low) & (rate <= low + max_gap)
        if not inside.any(axis=1).all():
            continue
        errors = np.where(inside, wrong, np.inf)
        if (total := float(errors.min(axis=1).sum())) < best:
            best, cuts = total, errors.argmin(axis=1).tolist()
    return [float(EDGES[k]) for k in cuts]


def gap_of(site: Site, answers: np.ndarray, of: str, groups: Sequence[int]) -> float:
    """Return the gap of a rate between the groups of one site, from its answers (truth values)."""
    assert site.group is not None
    weight = np.ones(len(site.y)) if site.weight is None else site.weight
    values = {"error": answers != (site.y == 1), "selection": answers, "miss": ~answers}[of]
    rates = []
    for group in groups:
        rows = (site.group == group) & ((site.y == 1) | (of != "miss"))
        if rows.any():
            rates.append(float(np.average(values[rows], weights=weight[rows])))
    return max(rates) - min(rates) if rates else float("nan")


class FairClassifier(LinearClassifierOverSites):
    """Fit a linear classifier of least loss whose losses, or rates, of any two groups are close at every site.

    It minimises the sites' average of the mean logistic loss, subject to the constraint that at EVERY site the mean
    logistic losses of any two groups differ by at most `max_gap`. The constraint is not convex. The certificate shows
    that the model satisfies it and the first-order conditions of optimality; another start may lead to another such
    model.

    A bound on losses levels down: the group that the model knows well gets a worse model. With `of` the gap is one of
    rates: wrong answers ("error"), positive answers ("selection", demographic parity) or missed positives ("miss",
    equal opportunity). A rate has no derivative, so training bounds a smooth form of it (a sigmoid of the score), and
    the certificate is about that form; `rate_gaps_` has the gaps of the rates themselves on the training rows. With
    `threshold` a threshold on the score is chosen afterwards, from the sites' counts of rows by group, class and score,
    so that the rates over all rows keep the gap with the fewest wrong answers.

    More than two classes are fitted one against the rest: the loss is then that of telling a class from all others, and
    for every class the gap is bounded at every site.

    Args:
        max_gap: the largest difference between two groups' mean losses, or rates, at a site.
        of: what the gap is of: "loss", "error", "selection" or "miss".
        threshold: "overall" chooses one threshold for all groups; "group" one for each, and `predict` then needs the
            group of each row; None answers `classes_[1]` where the score is above 0. For two classes and rates only.
        class_weight: weights by class, which multiply the rows' weights: a dict, "balanced" for classes of the same
            total weight, or None.
        fit_intercept: whether the model has an intercept.
        ridge: weight of the penalty (ridge/2)‖coef‖², which leaves the intercept out.
        beta: "auto" trains with the algorithm that `fd.solve` chooses, `fd.InteriorPoint`; a number trains with
            `fd.ProxAL` and this weight β of its augmented Lagrangian. Gaps of rates always take `fd.InteriorPoint`.
        eps1: the stationarity at which training ends.
        eps2: the feasibility and complementarity at which training ends; a gap is then at most max_gap + eps2.
        max_rounds: the largest number of communication rounds.
        seed: the seed of the random draws of the run.

    Attributes:
        classes_: the classes, sorted.
        groups_: the groups, sorted.
        coef_, intercept_: the model of the log-odds of `classes_[1]`, shapes (1, features) and (1,); with more than two
            classes, a row for each class against the rest.
        certificate_: the `Certificate`; print it for a table of the sites.
        multipliers_: by site, the multipliers of its gaps: for each pair of groups (a, b), in the order of `groups_`,
            that of loss(a) − loss(b) and that of loss(b) − loss(a).
        cuts_: by group, the score from which on the answer is `classes_[1]`; None without `threshold`.
        rate_gaps_: by site, the gap of the rate on the training rows; None for a gap of losses, and for more classes.
        n_rounds_: the number of communication rounds.
        run_: the `Run`, with its traffic and history.
        sites_: the names of the sites.
        n_features_in_, feature_names_in_: as in scikit-learn.

    With more than two classes, `certificate_`, `multipliers_` and `run_` are dicts by class.

    If the certificate does not hold, `fit` issues a `ConvergenceWarning` that names the largest violation and its site.
    The group of a row is used in training only. To let the model use it for prediction, put it into X as well.
    With scikit-learn's metadata routing switched on, `fit` asks for `group`, `sites` and `sample_weight`, so that
    `cross_validate(model, X, y, params={"group": group})` passes each fold its groups.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> draw = np.random.default_rng(0)
        >>> X, group = draw.normal(size=(240, 3)), np.arange(240) % 2
        >>> y = X[:, 0] + np.where(group == 1, 1.5, 0.5) * draw.normal(size=240) > 0
        >>> hospital = np.repeat(["north", "south", "west"], 80)
        >>> model = fd.FairClassifier(max_gap=0.05).fit(X, y, group=group, sites=hospital)
        >>> model.certificate_.holds()
        True
        >>> gaps = [row.value for row in model.certificate_.rows if row.site == "south"]
        >>> max(gaps) <= 0.05 + model.eps2
        True
    """

    # what `fit` asks for when scikit-learn routes metadata, unless set_fit_request says otherwise
    __metadata_request__fit: ClassVar = {"group": True, "sites": True, "sample_weight": True}

    def __init__(
        self,
        max_gap: float = 0.1,
        *,
        of: str = "loss",
        threshold: str | None = None,
        class_weight: ClassWeight = None,
        fit_intercept: bool = True,
        ridge: float = 0.0,
        beta: float | str = "auto",
        eps1: float = 1e-6,
        eps2: float = 1e-6,
        max_rounds: int = 10_000,
        seed: int = 0,
    ):
        self.max_gap = max_gap
        self.of = of
        self.threshold = threshold
        self.class_weight = class_weight
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
        group: ArrayLike | None = None,
        sites: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        server: SiteRows | None = None,
    ) -> Self:
        """Train the classifier over sites.

        Args:
            X: a list, or a dict by name, of the sites' `(X, y, group)`; or one table (rows, features), with `y`.
            y: the labels of the table.
            group: the group of each row of the table; without it all rows are one group, no gap is bounded, and a
                warning says so.
            sites: the name of the site of each row of the table; without it, all rows are one site.
            sample_weight: the weight of each row of the table, in the objective and in the groups' mean losses.
            server: the server's own data, `(X, y, group)`, on which the gap is bounded too.

        Returns:
            The fitted classifier itself.
        """
        self._check_settings()
        check_parameter(self, "max_gap", ge=0)
        self._check_choices()
        with_groups = group is not None or (y is None and are_sites(X))
        members, own = self._take_sites(
            X, y, sites=sites, group=group, sample_weight=sample_weight, server=server, with_groups=with_groups
        )
        everyone = weigh_classes(self, [*members, *own], self.classes_, self.class_weight)
        everyone = self._take_groups(everyone) if with_groups else everyone
        if not with_groups:
            self.groups_ = np.array([0])
            warnings.warn(
                f"{type(self).__name__}: no group was given, so all rows are one group and no gap is bounded; "
                "give the group of each row: fit(X, y, group=...).",
                UserWarning,
                stacklevel=2,
            )
        # "local" is a constraint at each site, "global" one on the server's own data
        scopes = ["local", "global"][: 1 + len(own)]
        loss, runs, sites_of_class = SURROGATES.get(self.of), [], []
        for label, _ in self._codes():
            recoding = [merge_copies(replace(site, y=(site.y == label).astype(float))) for site in everyone]
            recoding = with_all_weights(recoding)
            constraints = self._constraints(scopes, has_weights(recoding))
            server_rows = recoding[-1] if own else None
            training = recoding[: len(members)]
            sites_of_class.append(training)
            if loss is None or not constraints:
                runs.append(self._train(training, server_rows, constraints, None))
                continue
            # the model without terms is where the search for one that keeps them begins
            method = InteriorPoint(eps1=self.eps1, eps2=self.eps2)
            start = np.asarray(self._train(training, server_rows, (), None, method).w)
            runs.append(self._train(training, server_rows, constraints, None, method, start))
        self._keep(runs, bool(own))
        self.cuts_, self.rate_gaps_ = None, None
        if self.of != "loss" and with_groups and len(runs) == 1:
            self._choose_cuts(sites_of_class[0])
        return self

    def predict(self, X: ArrayLike, *, group: ArrayLike | None = None) -> np.ndarray:
        """Return the predicted class of each row.

        Args:
            X: a table, shape (rows, features), dense or sparse.
            group: the group of each row; needed where each group has a threshold of its own, and not used otherwise.

        Returns:
            Entries of `classes_`, shape (rows,).
        """
        scores = self.decision_function(X)
        if self.cuts_ is None:
            place = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)
            return self.classes_[place]
        return self.classes_[(scores >= self._cuts_for(len(scores), group)).astype(int)]

    def to_sklearn(self) -> PlainClassifier:
        model = super().to_sklearn()
        if self.cuts_ is None:
            return model
        if self.threshold == "group":
            raise FoedusError("a threshold for each group has no form in scikit-learn; use threshold='overall'.")
        return with_threshold(model, next(iter(self.cuts_.values())), self.classes_[1], columns_of(self))

    def _cuts_for(self, rows: int, group: ArrayLike | None) -> np.ndarray:
        """The threshold of each row."""
        assert self.cuts_ is not None
        if self.threshold == "overall":
            return np.full(rows, next(iter(self.cuts_.values())))
        if group is None:
            raise FoedusError("each group has a threshold of its own: give predict the group of each row, group=....")
        groups = one_per_row("group", group, rows)
        known = self.groups_.tolist()
        for value in np.unique(groups).tolist():
            if value not in known:
                raise FoedusError(f"predict: no row of the group {value!r} was in training, only {known}.")
        return np.array([self.cuts_[value] for value in groups.tolist()])

    def _constraints(self, scopes: Sequence[str], weighted: bool) -> list[LossGap]:
        """The bounds on the gaps of any two groups, in which rows count by their weights where they have some."""
        masks = [in_group(i, str(name)) for i, name in enumerate(self.groups_.tolist())]
        masks = [WeightedMask(mask) for mask in masks] if weighted else masks
        masks = [Positives(mask) for mask in masks] if self.of == "miss" else masks
        gap, loss = float(self.max_gap), SURROGATES.get(self.of)
        return [LossGap(a, b, gap, scope=scope, loss=loss) for scope in scopes for a, b in combinations(masks, 2)]

    def _choose_cuts(self, sites: Sequence[Site]) -> None:
        """Choose the thresholds from the sum of the sites' counts, and measure the gaps that are left at each site."""
        groups = self.groups_.tolist()
        scores = [site.x @ self.coef_[0] + self.intercept_[0] for site in sites]
        if self.threshold is not None:
            parts = [ScoreCounts.of(site, z, len(groups)) for site, z in zip(sites, scores, strict=True)]
            counts = sum(parts[1:], parts[0])
            if self.threshold == "overall":
                self.cuts_ = dict.fromkeys(groups, common_cut(counts, self.of, float(self.max_gap)))
            else:
                cuts = group_cuts(counts, self.of, float(self.max_gap))
                self.cuts_ = dict(zip(groups, cuts, strict=True))
        self.rate_gaps_ = {}
        for site, z in zip(sites, scores, strict=True):
            assert site.group is not None
            if self.cuts_ is None:
                answers = z > 0
            else:
                answers = z >= np.array([self.cuts_[name] for name in groups])[site.group.astype(int)]
            self.rate_gaps_[site.name] = gap_of(site, answers, self.of, range(len(groups)))

    def _check_choices(self) -> None:
        check_parameter(self, "of", choices=("loss", *SURROGATES))
        check_parameter(self, "threshold", choices=(None, "overall", "group"))
        if self.threshold is not None and self.of == "loss":
            raise FoedusError(
                f"The 'threshold' of {type(self).__name__} keeps the gap of a rate; say which with of=, as of='error'."
            )

    def _take_classes(self, sites: Sequence[Site]) -> None:
        super()._take_classes(sites)
        if self.threshold is not None and len(self.classes_) > 2:
            raise FoedusError(
                f"{type(self).__name__} chooses a threshold between two classes. Got {len(self.classes_)} classes."
            )

    def _take_groups(self, sites: Sequence[Site]) -> list[Site]:
        """Set `groups_` from all sites, and return the sites with groups numbered 0, 1, …"""
        groups = {site.name: site.group for site in sites if site.group is not None}
        self.groups_ = distinct("groups", groups)
        if len(self.groups_) < 2:
            raise FoedusError(
                f"{type(self).__name__} needs at least two groups. Got only {self.groups_.tolist()[0]!r}."
            )
        for site in sites:
            for name in self.groups_[~np.isin(self.groups_, groups[site.name])].tolist():
                raise FoedusError(
                    f"site {site.name!r}: no example is of group {name!r}, so its loss gap is undefined; "
                    "merge the site with another or leave it out."
                )
        return [replace(site, group=np.searchsorted(self.groups_, groups[site.name]).astype(float)) for site in sites]
