"""The fair classifier: the losses of groups differ by no more than a stated gap at every site."""

from dataclasses import replace
from itertools import combinations
from typing import Any, Self

import numpy as np

from foedus.constraints import LossGap
from foedus.errors import FoedusError
from foedus.estimators.linear import LinearClassifierOverSites, distinct
from foedus.terms import group as in_group


class FairClassifier(LinearClassifierOverSites):
    """A linear classifier of least loss whose mean losses on any two groups are close at every site.

    Minimises the sites' mean of the logistic loss, subject to mean logistic losses that differ by at most `max_gap`
    between any two groups at EVERY site. The constraint is not convex: the answer is certified to satisfy it, together
    with the first-order conditions of optimality, and another start may lead to another such point.

    Args:
        max_gap: the largest difference between two groups' mean losses at a site.
        fit_intercept: whether the model has an intercept.
        ridge: weight of the penalty (ridge/2)‖coef‖², which leaves the intercept out.
        beta: β of `fd.ProxAL`, the weight of its augmented Lagrangian; "auto" lets it grow.
        eps1: stationarity to reach.
        eps2: feasibility and complementarity to reach: a gap is at most max_gap + eps2.
        max_rounds: communication rounds at most.
        seed: keys the random draws of the run.

    Attributes:
        classes_: the two classes, sorted.
        groups_: the groups, sorted.
        coef_, intercept_: of the log-odds of `classes_[1]`; shapes (1, features) and (1,).
        certificate_: the `Certificate`; print it for a table of the sites.
        multipliers_: by site, the multipliers of its gaps: for each pair of groups (a, b), in the order of `groups_`,
            that of loss(a) − loss(b) and that of loss(b) − loss(a).
        n_rounds_: communication rounds.
        run_: the `Run`, with its traffic and history.
        sites_: the names of the sites.
        n_features_in_, feature_names_in_: as in scikit-learn.

    A fit whose certificate does not hold warns with a `ConvergenceWarning` that says which site's terms are not met.
    The group of a row is used in training alone; put it into X as well if the model shall see it.
    """

    def __init__(
        self,
        max_gap: float = 0.1,
        *,
        fit_intercept: bool = True,
        ridge: float = 0.0,
        beta: float | str = "auto",
        eps1: float = 1e-3,
        eps2: float = 1e-3,
        max_rounds: int = 10_000,
        seed: int = 0,
    ):
        self.max_gap = max_gap
        self.fit_intercept = fit_intercept
        self.ridge = ridge
        self.beta = beta
        self.eps1 = eps1
        self.eps2 = eps2
        self.max_rounds = max_rounds
        self.seed = seed

    def fit(self, X: Any, y: Any = None, *, group: Any = None, sites: Any = None, server: Any = None) -> Self:
        """Train over sites.

        Args:
            X: a list, or a dict by name, of the sites' `(X, y, group)`; or one table (rows, features), with `y`.
            y: the labels of the table.
            group: the group of each row of the table.
            sites: the name of the site of each row of the table; all rows are one site when left out.
            server: data of the server's own, `(X, y, group)`, on which the gap holds too.
        """
        self._check_settings()
        self._check("max_gap", ge=0)
        members = self._take_sites(X, y, sites, group, grouped=True)
        own = self._take_server(server, members, grouped=True)
        everyone = [*members, *own]
        self._take_classes(everyone)
        self.groups_ = distinct("groups", {site.name: site.group for site in everyone if site.group is not None})
        if len(self.groups_) < 2:
            raise FoedusError(
                f"{type(self).__name__} needs at least two groups. Got only {self.groups_.tolist()[0]!r}."
            )
        coded = []
        for site in everyone:
            assert site.group is not None
            for name in self.groups_[~np.isin(self.groups_, site.group)].tolist():
                raise FoedusError(
                    f"site {site.name!r}: no example is of group {name!r}, so its loss gap is undefined; "
                    "merge the site with another or leave it out."
                )
            labels = (site.y == self.classes_[1]).astype(float)
            coded.append(replace(site, y=labels, group=np.searchsorted(self.groups_, site.group).astype(float)))
        members, own = coded[: len(members)], coded[len(members) :]

        scopes = ["local", "global"][: 1 + len(own)]
        pairs = list(combinations([in_group(i, str(name)) for i, name in enumerate(self.groups_.tolist())], 2))
        gap = float(self.max_gap)
        constraints = [LossGap(a, b, gap, scope=scope) for scope in scopes for a, b in pairs]
        self._train(members, own[0] if own else None, constraints, None)
        return self
