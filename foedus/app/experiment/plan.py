"""Plan: one run of an experiment file, stated without data, for sites that bring their own.

The name of the class and of its field are written into the request of a submitted run (`foedus.federation.spec`).
"""

from dataclasses import dataclass, replace

import numpy as np

from foedus.algorithms import CentralProxAL, FedGiA
from foedus.algorithms.minimax import Minimax
from foedus.app.experiment import build, figures, sources
from foedus.app.experiment.build import PrivacyArguments, RunSetup
from foedus.app.experiment.sweep import Settings
from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.data.preprocess import FIGURES, Preprocessing
from foedus.data.sites import NUMBERS, WORDS, Cohort, Roles, Sketch
from foedus.data.sums import Answers
from foedus.federation.approval import constraint_in_words
from foedus.federation.holdout import SHARES, Holdout, is_share
from foedus.federation.order import Order, order_of
from foedus.privacy.central import Central, NoiseShares
from foedus.privacy.releasing import make_private, sound_noise
from foedus.problem.constraints import Constraint
from foedus.problem.problem import Problem
from foedus.problem.terms import label
from foedus.protocol.algorithm import Algorithm, name_of
from foedus.sums.masking import by_sums, check_shares, is_verified, masking_of
from foedus.sums.questions import check_enough

ELSEWHERE = ("files", "file", "site", "set")  # keys of [data] that say where the rows are: each site's own file does


@dataclass(frozen=True)
class Plan:
    """The settings of one run, from which every party works out the same terms."""

    settings: Settings

    @staticmethod
    def of(settings: Settings) -> "Plan":
        """Return the plan of a case; raise where it needs data at the server or at the coordinator."""
        data = settings["data"]
        if data["server"] is not None:
            raise FoedusError("[data] server: a submitted run brings no data of its own; run it with 'foedus run'.")
        roles = sources.roles_of(settings)
        roles_of_data = {**data, "label": roles.label, "positive": roles.positive, "group": roles.group}
        plan = Plan({**settings, "data": {**roles_of_data, **dict.fromkeys(ELSEWHERE)}, "has_partition": False})
        algorithm = build.algorithm_of(settings)
        shares = figures.shares_of(settings)
        if not (is_share(shares.evaluate) and is_share(shares.threshold)):
            raise FoedusError(f"holdout, in [evaluate] or in a term on a rate: {SHARES} in a submitted run.")
        if isinstance(algorithm, CentralProxAL):
            raise FoedusError(f"[algorithm] {name_of(algorithm)} works on all data in one place; here data stay apart.")
        if isinstance(algorithm, Minimax) and (algorithm.q_hat == "size" or algorithm.support is not None):
            raise FoedusError(
                f"[algorithm] {name_of(algorithm)} needs to know the sites' numbers of rows or whether they are within "
                "the support, and sites do not tell; say q_hat = 'uniform' and leave the support out."
            )
        if settings["problem"]["weights"] == "rows" and settings["problem"]["where"] is not None:
            raise FoedusError(
                "[problem] weights = 'rows' in a submitted run counts all rows of a site; leave where out, or give the "
                "weights by site."
            )
        total = build.privacy_of(settings).get("privacy")
        if isinstance(total, Central) and total.least_rows is None:
            raise FoedusError(
                '[privacy] least_rows: the noise of kind = "central" is made for so many rows of a site, and sites do '
                'not tell how many they have; state a number that every site has, or write kind = "local".'
            )
        if settings["privacy"] is not None and isinstance(algorithm, FedGiA):
            raise FoedusError(
                "[privacy]: FedGiA with noise needs the number of all rows, and sites do not tell theirs."
            )
        return plan

    def check(self, sites: int) -> None:
        """Raise where so many sites are too few for masked sums, or noise drowns whatever the data say.

        How many columns there are is known once the sites have told; here those count that the file names.
        """
        if not self.secure:
            return
        check_enough(sites, "sites")
        if self.verified(sites):
            masking_of(self.algorithm(sites), self._stand_in(sites).terms).check_size(1, sites)
        if isinstance(noise := sound_noise(self.algorithm(sites)), NoiseShares):
            noise.check_useful(max(1, len(self.roles.features or ())))

    @property
    def roles(self) -> Roles:
        """The roles of the columns."""
        return sources.roles_of(self.settings)

    def algorithm(self, sites: int) -> Algorithm:
        """Return the algorithm with its noise; a stand-in is enough to attach it, for no data are looked at."""
        privacy = build.privacy_of(self.settings)
        return self._with_noise(build.algorithm_of(self.settings), self._stand_in(sites), privacy)

    def _stand_in(self, sites: int = 1) -> Problem:
        """Return a problem with this loss and next to no data, for what does not depend on the data."""
        one = (np.zeros((2, 2)), np.array([0.0, 1.0]))
        # private rounds are as many as there are caps to measure; without privacy the terms make no difference here
        caps = [] if self.settings["privacy"] is None else self._constraints()
        names = [f"site {k}" for k in range(sites)]
        return Problem(dict.fromkeys(names, one), loss=build.loss_of(self.settings), constraints=caps)

    def _constraints(self) -> list[Constraint]:
        """Return the terms, with a stand-in for the rows that each is about."""
        return build.constraints_of(self.settings, lambda words, place: label(0.0))

    def _with_noise(self, algorithm: Algorithm, problem: Problem, privacy: PrivacyArguments) -> Algorithm:
        if "privacy" not in privacy:
            return algorithm
        return make_private(algorithm, privacy["privacy"], privacy.get("budget"), problem, self.max_rounds)

    @property
    def max_rounds(self) -> int:
        """The most rounds of the run."""
        return build.rounds_of(self.settings, build.algorithm_of(self.settings), self._stand_in())

    @property
    def counts_rows(self) -> bool:
        """Whether sites tell their number of rows, because they weigh by it."""
        return build.counts_rows(self.settings)

    @property
    def summary(self) -> str | None:
        """How the standard errors are computed that the sites are asked for at the end; None where they are not."""
        return self.settings["summary"]["errors"]

    @property
    def formula(self) -> str:
        """The formula whose columns the model's numbers belong to; empty without one."""
        return self.settings["problem"]["formula"] or ""

    @property
    def secure(self) -> bool:
        """Whether the server sees masked sums alone."""
        return build.secure_of(self.settings)

    @property
    def holdout(self) -> Holdout:
        """Which rows the sites keep out of training, and what they tell about them."""
        noise = figures.noise_of(self.settings)
        return Holdout(figures.shares_of(self.settings), noise, tuple(figures.rates_of(self.settings)))

    @property
    def noise(self) -> Json | None:
        """The bounds and the epsilon of noise on what a site sends while preparing; None where sums are exact."""
        preparation = build.fit_arguments(self.settings)
        if preparation["epsilon"] is None:
            return None
        return {
            "bounds": {name: list(ends) for name, ends in preparation["bounds"].items()},
            "epsilon": preparation["epsilon"],
            "figures": FIGURES * len(preparation["bounds"]),
        }

    @property
    def problem(self) -> Json:
        """The loss and the terms in words, for a person at a site who is asked to approve them."""
        terms = sorted(map(constraint_in_words, self._constraints()))
        if self.formula:
            terms.append(f"the model's columns are those of {self.formula}")
        if self.counts_rows:
            terms.append("sites weigh by their number of rows, which this site tells")
        return {"loss": build.loss_of(self.settings).name, "terms": terms}

    @property
    def sketch(self) -> Sketch | None:
        """What each site's columns hold, where the file names its features: numbers, but for those it says hold words.

        The labels are not known before sites tell; what is asked before that does not depend on them.
        """
        roles = self.roles
        if roles.features is None:
            return None
        words = {*roles.categorical, *(self.settings["preprocess"]["categories"] or {})}
        holds = tuple(WORDS if name in words else NUMBERS for name in roles.features)
        labels = ("0", "1") if roles.positive is None else ("", str(roles.positive))
        return Sketch(roles.features, holds, labels if roles.classification else (), ())

    def modules(self) -> tuple[str, ...]:
        """Return the module of an algorithm that is not of foedus."""
        name = str((self.settings["algorithm"] or {}).get("name", ""))
        return (name.partition(":")[0],) if ":" in name else ()

    def verified(self, sites: int) -> bool:
        """Return whether the sites check the server."""
        who = build.participation_of(self.settings)
        return self.secure and self._verify and is_verified(self.algorithm(sites), who, sites, has_own_data=False)

    @property
    def _verify(self) -> bool:
        runtime = build.runtime_of(self.settings).get("runtime")
        return runtime is None or runtime.verify

    def rules(self, cohort: Cohort, answers: Answers) -> Preprocessing:
        """Fit the preprocessing over the sites."""
        return build.rules_of(self.settings, cohort, answers)

    def setup(self, cohort: Cohort, rules: Preprocessing, sites: tuple[str, ...]) -> RunSetup:
        """Return the setup as any party works it out, without rows.

        Every site is given the same stand-in: one row of each label and group, which is all that the terms look at.
        """
        labels = [0.0, 1.0] if cohort.labels else sorted({0.0, 1.0, *self._named_labels()})
        groups = range(max(1, len(cohort.groups)))
        y, group = (np.array(part, dtype=float) for part in zip(*((v, g) for v in labels for g in groups), strict=True))
        X = np.zeros((len(y), len(rules.names)))
        X[:, -1] = 1.0 if rules.intercept else 0.0
        one = (X, y, group) if cohort.groups else (X, y)
        return build.build(self.settings, cohort, rules, dict.fromkeys(sites, one))

    def _named_labels(self) -> list[float]:
        """The labels that the terms of a regression name."""
        texts = [self.settings["problem"]["where"]]
        texts += [value for one in self.settings["constraints"] for value in one.values()]
        matches = [build.MASK.fullmatch(words.strip()) for words in texts if isinstance(words, str)]
        return [float(hit[2]) for hit in matches if hit is not None and hit[1] == "label"]

    def order(self, cohort: Cohort, rules: Preprocessing, run: str, sites: tuple[str, ...]) -> Order:
        """Return the order that the sites carry out, once the preprocessing is settled."""
        setup = self.setup(cohort, rules, sites)
        w0 = np.zeros(setup.problem.terms.dim)
        problem = setup.problem.over(w0)
        algorithm = self._with_noise(setup.algorithm, problem, setup.privacy)
        fit = (by_sums(algorithm) if self.secure else algorithm).fit(problem)
        if self.secure:
            masking_of(fit.algorithm, problem.terms)  # raises where the algorithm needs single replies
            check_shares(fit.algorithm, problem, setup.participation, secure=True)
        order = order_of(
            fit.problem, fit.algorithm, w0, run=run, sites=sites, seed=int(self.settings["seed"]),
            max_rounds=self.max_rounds, participation=setup.participation, secure=self.secure,
        )  # fmt: skip
        stated = {"groups": rules.groups, "verify": self._verify, "summary": self.summary}
        return replace(order, holdout=self.holdout.to_json(), **stated)
