"""Plan: one run of an experiment file, stated without data, for sites that bring their own."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from foedus.algorithm import Algorithm
from foedus.algorithms import FedGiA
from foedus.algorithms.minimax import Minimax
from foedus.data.preprocess import Preprocessing
from foedus.data.sites import Cohort, Roles
from foedus.errors import FoedusError
from foedus.experiment import build, sources
from foedus.experiment.build import RunSetup
from foedus.privacy.attach import attach
from foedus.problem import Problem
from foedus.runtime.flare.approval import constraint_in_words
from foedus.runtime.flare.order import Order, order_of
from foedus.terms import label

ELSEWHERE = ("files", "file", "site", "set")  # keys of [data] that say where the rows are: each site's own file does


@dataclass(frozen=True)
class Plan:
    """The settings of one run; every party works out the same terms from them."""

    settings: dict[str, Any]

    @staticmethod
    def of(settings: dict[str, Any]) -> "Plan":
        """The plan of a case; what needs data at the server or at the coordinator is refused."""
        data = settings["data"]
        if data["server"] is not None:
            raise FoedusError("[data] server: a submitted run brings no data of its own; run it with 'foedus run'.")
        roles = sources.roles_of(settings)
        roles_of_data = {**data, "label": roles.label, "positive": roles.positive, "group": roles.group}
        plan = Plan({**settings, "data": {**roles_of_data, **dict.fromkeys(ELSEWHERE)}, "has_partition": False})
        algorithm = build.algorithm_of(settings)
        if algorithm.pools:
            raise FoedusError(f"[algorithm] {algorithm.name} works on all data in one place; here data stay apart.")
        if isinstance(algorithm, Minimax) and (algorithm.q_hat == "size" or algorithm.support is not None):
            raise FoedusError(
                f"[algorithm] {algorithm.name} needs to know the sites' numbers of rows or whether they are within the "
                "support, and sites do not tell; say q_hat = 'uniform' and leave the support out."
            )
        if settings["privacy"] is not None and isinstance(algorithm, FedGiA):
            raise FoedusError(
                "[privacy]: FedGiA with noise needs the number of all rows, and sites do not tell theirs."
            )
        return plan

    @property
    def roles(self) -> Roles:
        return sources.roles_of(self.settings)

    @property
    def algorithm(self) -> Algorithm:
        stand_in = Problem({"any": (np.zeros((2, 2)), np.array([0.0, 1.0]))}, loss=build.loss_of(self.settings))
        return self._with_noise(build.algorithm_of(self.settings), stand_in, build.privacy_of(self.settings))

    def _with_noise(self, algorithm: Algorithm, problem: Problem, privacy: dict[str, Any]) -> Algorithm:
        if not privacy:
            return algorithm
        return attach(algorithm, privacy["privacy"], privacy.get("budget"), problem, self.max_rounds)

    @property
    def max_rounds(self) -> int:
        return build.rounds_of(self.settings, build.algorithm_of(self.settings))

    @property
    def noise(self) -> dict[str, Any] | None:
        preparation = build.fit_arguments(self.settings)
        if preparation["epsilon"] is None:
            return None
        return {
            "bounds": {name: list(ends) for name, ends in preparation["bounds"].items()},
            "epsilon": preparation["epsilon"],
            "figures": 3 * len(preparation["bounds"]),
        }

    @property
    def problem(self) -> dict[str, Any]:
        """The loss and the terms in words, for a person at a site who is asked to approve them."""
        constraints = build.constraints_of(self.settings, lambda asked, place: label(0.0))
        terms = sorted(map(constraint_in_words, constraints))
        return {"loss": build.loss_of(self.settings).name, "terms": terms}

    def rules(self, cohort: Cohort, answers: Any) -> Preprocessing:
        return build.rules_of(self.settings, cohort, answers)

    def setup(self, cohort: Cohort, rules: Preprocessing, sites: tuple[str, ...]) -> RunSetup:
        """The terms as at any site: a stand-in has a row of each label and group, and nothing else is asked of it."""
        labels = [0.0, 1.0] if cohort.labels else sorted({0.0, 1.0, *self._named_labels()})
        groups = range(max(1, len(cohort.groups)))
        y, group = (np.array(part, dtype=float) for part in zip(*((v, g) for v in labels for g in groups), strict=True))
        X = np.zeros((len(y), len(rules.names)))
        X[:, -1] = 1.0 if rules.intercept else 0.0
        one = (X, y, group) if cohort.groups else (X, y)
        return build.build(self.settings, cohort, rules, dict.fromkeys(sites, one))

    def _named_labels(self) -> list[float]:
        """The labels of a regression that the terms name."""
        texts = [self.settings["problem"]["where"]]
        texts += [value for one in self.settings["constraints"] for value in one.values()]
        matches = [build.FORM.fullmatch(words.strip()) for words in texts if isinstance(words, str)]
        return [float(hit[2]) for hit in matches if hit is not None and hit[1] == "label"]

    def order(self, cohort: Cohort, rules: Preprocessing, run: str, sites: tuple[str, ...]) -> Order:
        setup = self.setup(cohort, rules, sites)
        w0 = np.zeros(setup.problem.terms.dim)
        problem = setup.problem.over(w0)
        algorithm = self._with_noise(setup.algorithm, problem, setup.privacy)
        algorithm.check(problem.terms)
        algorithm = algorithm.resolve(problem.terms)
        return order_of(
            algorithm.restate(problem), algorithm, w0, run=run, sites=sites, seed=int(self.settings["seed"]),
            max_rounds=self.max_rounds, participation=setup.participation,
        )  # fmt: skip
