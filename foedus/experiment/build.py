"""From the settings of one run to its sites, problem, algorithm and participation."""

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foedus.algorithm import Algorithm
from foedus.data import preprocess, tables
from foedus.data.preprocess import Preprocessing
from foedus.data.sites import Cohort
from foedus.data.sums import Answers
from foedus.errors import FoedusError, did_you_mean
from foedus.experiment import catalogue
from foedus.losses import Loss
from foedus.penalties import BesideIntercept, Penalty
from foedus.privacy.attach import attach, prepare
from foedus.privacy.ledger import Ledger, prepared
from foedus.privacy.total import Local, default_rounds, usual_clip
from foedus.problem import Problem
from foedus.regularizers import Leading, Regularizer
from foedus.runtime.participation import Coverage, Fraction
from foedus.terms import Mask, Where

Settings = Mapping[str, Any]
FORM = re.compile(r"(label|group)\s+(\S.*)")


# what needs no data


def algorithm_of(settings: Settings) -> Algorithm:
    """The algorithm with its settings; one that must know of the intercept is told."""
    asked = dict(settings["algorithm"])
    offer = catalogue.named(asked.pop("name"), catalogue.algorithms(), "[algorithm]")
    if "noise" in asked:
        raise FoedusError("[algorithm] noise: noise is asked for in a section of its own, [privacy].")
    if "intercept" in offer.parameters:
        asked.setdefault("intercept", settings["preprocess"]["intercept"])
    return offer.build(asked, "[algorithm]", {Loss: _loss})


def participation_of(settings: Settings) -> Fraction:
    asked = settings["participation"]
    try:
        if asked["every"] is None:
            return Fraction(float(asked["fraction"]), float(asked["dropout"]))
        return Coverage(float(asked["fraction"]), float(asked["dropout"]), int(asked["every"]))
    except FoedusError as error:
        raise FoedusError(f"[participation]: {error}") from None


def _loss(asked: Any, place: str) -> Loss:
    asked = {"name": asked} if isinstance(asked, str) else dict(asked)
    offer = catalogue.named(asked.pop("name", None), catalogue.losses(), place)
    return offer.build(asked, place)


def loss_of(settings: Settings) -> Loss:
    return _loss(settings["problem"]["loss"], "[problem] loss")


def penalty_of(settings: Settings) -> Penalty | None:
    """The penalty, which leaves the intercept out."""
    if settings["problem"]["penalty"] is None:
        return None
    asked = dict(settings["problem"]["penalty"])
    offer = catalogue.named(asked.pop("name"), catalogue.penalties(), "[problem] penalty")
    made = offer.build(asked, "[problem] penalty")
    return BesideIntercept.of(made) if settings["preprocess"]["intercept"] else made


def regularizer_of(settings: Settings, dim: int) -> Regularizer | None:
    """The regulariser, which leaves the intercept out."""
    if settings["problem"]["regularizer"] is None:
        return None
    asked = dict(settings["problem"]["regularizer"])
    offer = catalogue.named(asked.pop("name"), catalogue.regularizers(), "[problem] regularizer")
    made = offer.build(asked, "[problem] regularizer")
    return Leading(made, dim - 1) if settings["preprocess"]["intercept"] else made


def privacy_of(settings: Settings) -> dict[str, Any]:
    """The arguments of `solve` that [privacy] stands for."""
    if settings["privacy"] is None:
        return {}
    from foedus.solve import solve

    asked = dict(settings["privacy"])
    if asked["noise"] is None:
        del asked["noise"], asked["budget"]
        total = catalogue.totals()["Local"].build(asked, "[privacy]")
        told = stated(settings)
        figures = 3 * len(told["bounds"])
        if told["epsilon"] is not None and figures:  # as `preprocess.fit` shares it out
            total = replace(total, before=((told["epsilon"] / figures, figures),))
        return {"privacy": total}
    noise = catalogue.named(asked.pop("noise"), catalogue.noises(), "[privacy] noise")
    budget = asked.pop("budget", None)
    made: dict[str, Any] = {"privacy": noise.build(asked, "[privacy]")}
    if budget is not None:
        made["budget"] = budget
    if unknown := [name for name in made if name not in inspect.signature(solve).parameters]:
        raise FoedusError(f"[privacy]: this version of foedus has no {unknown[0]}.")
    return made


def rounds_of(settings: Settings, algorithm: Algorithm) -> int:
    """The most rounds of the run."""
    return int(settings["run"]["max_rounds"] or default_rounds(algorithm, privacy_of(settings).get("privacy")))


def runtime_of(settings: Settings) -> dict[str, Any]:
    """The argument of `solve` that says where rounds are played; none for this process."""
    asked = dict(settings["run"]["runtime"])
    offer = catalogue.named(asked.pop("name"), catalogue.runtimes(), "[run] runtime")
    made = offer.build(asked, "[run] runtime")
    return {} if made is None else {"runtime": made}


def split_mask(words: Any, place: str) -> tuple[str, str]:
    """'label 1' as ('label', '1')."""
    found = FORM.fullmatch(words.strip()) if isinstance(words, str) else None
    if found is None:
        hint = did_you_mean(words.split()[0], ("label", "group")) if isinstance(words, str) and words.split() else ""
        raise FoedusError(f"{place} must be 'label VALUE' or 'group VALUE'. Got {words!r} instead.{hint}")
    return found[1], found[2].strip()


def check_masks(settings: Settings) -> None:
    """The form of everything that names a label or a group, before the data say which there are."""

    def read(words: Any, place: str) -> Where:
        kind, _ = split_mask(words, place)
        if kind == "group" and settings["data"]["group"] is None and settings["data"]["set"] is None:
            raise FoedusError(f"{place} = {words!r} needs a group: name its column with group in [data].")
        return Where("y" if kind == "label" else "group", 0.0)

    if settings["problem"]["where"] is not None:
        read(settings["problem"]["where"], "[problem] where")
    constraints_of(settings, read)


def constraints_of(settings: Settings, read: Callable[[Any, str], Mask], names: list[str] | None = None) -> list[Any]:
    """The constraints; `names` are those of the model's numbers, once they are known."""

    def row(asked: Any, place: str) -> catalogue.Coefficients:
        numbers = isinstance(asked, dict) and all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in asked.values()
        )
        if not numbers or not asked:
            raise FoedusError(f"{place} must be a table of feature = number. Got {asked!r} instead.")
        known = names or list(asked)
        for name in asked:
            if name not in known:
                hint = did_you_mean(name, known)
                raise FoedusError(f"{place}: the model has no number {name!r}, only {tables.listing(known)}.{hint}")
        return catalogue.Coefficients({name: float(asked.get(name, 0.0)) for name in known})

    made = []
    for number, one in enumerate(settings["constraints"], start=1):
        asked, place = dict(one), f"[[constraints]] {number}"
        offer = catalogue.named(asked.pop("type"), catalogue.constraints(), place)
        _check_limit(offer.name, asked.get("at_most"), place)
        made.append(offer.build(asked, place, {Mask: read, Loss: _loss, catalogue.Coefficients: row}))
    return made


def _check_limit(kind: str, limit: Any, place: str) -> None:
    """A loss and a distance of two losses are never negative, so a cap below 0 cannot be kept by any model."""
    if kind not in ("LossCap", "LossGap"):
        return
    named = limit.items() if isinstance(limit, Mapping) else [("", limit)]
    for site, value in named:
        if isinstance(value, int | float) and value < 0:
            at = f" of {site!r}" if site else ""
            what = "a mean loss" if kind == "LossCap" else "the distance of two losses"
            raise FoedusError(
                f"{place} at_most{at} must be a number >= 0, for {what} is never negative. Got {value!r}."
            )


def stated(settings: Settings) -> dict[str, Any]:
    """The bounds and categories that the file states, and the privacy of the rest."""
    asked = settings["preprocess"]
    bounds = {}
    for name, ends in (asked["bounds"] or {}).items():
        numbers = isinstance(ends, list) and len(ends) == 2 and all(isinstance(e, int | float) for e in ends)
        if not numbers or not ends[0] < ends[1]:
            raise FoedusError(f"[preprocess.bounds] {name} must be [low, high] with low < high. Got {ends!r} instead.")
        bounds[name] = (float(ends[0]), float(ends[1]))
    categories = {}
    for name, words in (asked["categories"] or {}).items():
        if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
            raise FoedusError(f"[preprocess.categories] {name} must be a list of texts. Got {words!r} instead.")
        categories[name] = tuple(words)
    epsilon = asked["epsilon"]
    if epsilon is not None and not 0 < epsilon < float("inf"):
        raise FoedusError(f"[preprocess] epsilon must be a number > 0. Got {epsilon!r} instead.")
    return {"bounds": bounds, "categories": categories, "epsilon": epsilon, "seed": settings["seed"]}


# the problem


@dataclass(frozen=True)
class Built:
    """Everything that one run needs."""

    settings: Settings
    cohort: Cohort
    rules: Preprocessing
    problem: Problem
    algorithm: Algorithm
    participation: Fraction
    privacy: dict[str, Any]

    def accounted(self, ledger: Ledger | None) -> Ledger | None:
        """The ledger with what the sites sent to prepare the data."""
        return None if ledger is None else prepared(ledger, self.rules.noted, self.rules.exact)


def build(
    settings: Settings, cohort: Cohort, rules: Preprocessing | None = None, clients: dict[str, Any] | None = None
) -> Built:
    """The problem, the algorithm and who takes part, checked against each other.

    `clients` are the sites' arrays; those of the cohort's tables when left out.
    """
    if rules is None:
        rules = rules_of(settings, cohort)

    def read(words: Any, place: str) -> Where:
        return _mask(words, place, cohort)

    asked = settings["problem"]
    clients = preprocess.sites_of(cohort, rules) if clients is None else clients
    stated_terms = {
        "loss": loss_of(settings),
        "where": None if asked["where"] is None else read(asked["where"], "[problem] where"),
        "penalty": penalty_of(settings),
        "constraints": constraints_of(settings, read, rules.names),
        "regularizer": regularizer_of(settings, len(rules.names)),
        "server": None if cohort.server is None else preprocess.arrays_of(cohort, rules, cohort.server),
    }
    try:
        problem = Problem(clients, **stated_terms)
    except FoedusError as error:
        raise FoedusError(str(error).replace("client ", "site ", 1)) from None
    if runtime_of(settings) and importlib.util.find_spec("nvflare") is None:
        raise FoedusError("[run] runtime: sites of their own need NVIDIA FLARE: pip install 'foedus[flare]'.")
    algorithm = algorithm_of(settings)
    try:
        algorithm.check(problem.terms)
        algorithm = algorithm.resolve(problem.terms)
    except FoedusError as error:
        named = (asked["regularizer"] or {}).get("name", "")
        raise FoedusError(f"[algorithm]: {str(error).replace('Leading', named)}") from None
    who = participation_of(settings)
    try:
        who.check(problem.terms.clients)
    except FoedusError as error:
        raise FoedusError(f"[participation]: {error}") from None
    privacy = _clipped(_left(privacy_of(settings), rules), rules)
    return Built(settings, cohort, rules, problem, algorithm, who, privacy)


def check_privacy(built: Built) -> None:
    """Raise, before any round, where `solve` would refuse what [privacy] asks for."""
    if not built.privacy:
        return
    terms, limit = built.problem.terms, rounds_of(built.settings, built.algorithm)
    try:
        told = (built.privacy.get("privacy"), built.privacy.get("budget"))
        private = attach(built.algorithm, *told, built.problem, limit)
        private.check(terms)
        prepare(built.problem, private.resolve(terms), np.zeros(terms.dim))
    except FoedusError as error:
        raise FoedusError(f"[privacy]: {error}") from None


def _clipped(privacy: dict[str, Any], rules: Preprocessing) -> dict[str, Any]:
    """The arguments of [privacy], with the usual clip for the columns that there are."""
    total = privacy.get("privacy")
    if not isinstance(total, Local) or total.clip is not None:
        return privacy
    return privacy | {"privacy": replace(total, clip=usual_clip(len(rules.columns) + rules.intercept))}


def _left(privacy: dict[str, Any], rules: Preprocessing) -> dict[str, Any]:
    """The arguments of [privacy], with what preparing the data has spent taken off the budget."""
    if rules.epsilon is None or "budget" not in privacy:
        return privacy
    left = privacy["budget"] - rules.epsilon
    if left <= 0:
        raise FoedusError(
            f"[privacy] budget: preparing the data spends epsilon {rules.epsilon:g} of {privacy['budget']:g}, which "
            "leaves nothing for the training; lower epsilon in [preprocess], or raise the budget."
        )
    return privacy | {"budget": left}


def rules_of(settings: Settings, cohort: Cohort, answers: Answers | None = None) -> Preprocessing:
    """The preprocessing that [preprocess] asks for, found over the sites."""
    asked = settings["preprocess"]
    told = {"scale": asked["scale"], "intercept": asked["intercept"]} | stated(settings)
    return preprocess.fit(cohort, **told, answers=answers)


def _mask(words: Any, place: str, cohort: Cohort) -> Where:
    kind, value = split_mask(words, place)
    if kind == "label" and not cohort.labels:
        try:
            return Where("y", float(value))
        except ValueError:
            raise FoedusError(f"{place} = {words!r}: the labels are numbers; expected one.") from None
    known = cohort.labels if kind == "label" else cohort.groups
    column = cohort.roles.label if kind == "label" else cohort.roles.group
    if column is None:
        raise FoedusError(f"{place} = {words!r} needs a group: name its column with group in [data].")
    if value not in known:
        hint = did_you_mean(value, known)
        raise FoedusError(
            f"{place} = {words!r}: the column {column!r} has no such value, only {tables.listing(known)}.{hint}"
        )
    return Where("y" if kind == "label" else "group", float(known.index(value)), value)
