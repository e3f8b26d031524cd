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
    request = dict(settings["algorithm"])
    offer = catalogue.find_offer(request.pop("name"), catalogue.algorithms(), "[algorithm]")
    if "noise" in request:
        raise FoedusError("[algorithm] noise: noise is asked for in a section of its own, [privacy].")
    if "intercept" in offer.parameters:
        request.setdefault("intercept", settings["preprocess"]["intercept"])
    return offer.build(request, "[algorithm]", {Loss: _loss})


def participation_of(settings: Settings) -> Fraction:
    request = settings["participation"]
    try:
        if request["every"] is None:
            return Fraction(float(request["fraction"]), float(request["dropout"]))
        return Coverage(float(request["fraction"]), float(request["dropout"]), int(request["every"]))
    except FoedusError as error:
        raise FoedusError(f"[participation]: {error}") from None


def _loss(request: Any, place: str) -> Loss:
    request = {"name": request} if isinstance(request, str) else dict(request)
    offer = catalogue.find_offer(request.pop("name", None), catalogue.losses(), place)
    return offer.build(request, place)


def loss_of(settings: Settings) -> Loss:
    return _loss(settings["problem"]["loss"], "[problem] loss")


def penalty_of(settings: Settings) -> Penalty | None:
    """The penalty, which leaves the intercept out."""
    if settings["problem"]["penalty"] is None:
        return None
    request = dict(settings["problem"]["penalty"])
    offer = catalogue.find_offer(request.pop("name"), catalogue.penalties(), "[problem] penalty")
    penalty = offer.build(request, "[problem] penalty")
    return BesideIntercept.of(penalty) if settings["preprocess"]["intercept"] else penalty


def regularizer_of(settings: Settings, dim: int) -> Regularizer | None:
    """The regulariser, which leaves the intercept out."""
    if settings["problem"]["regularizer"] is None:
        return None
    request = dict(settings["problem"]["regularizer"])
    offer = catalogue.find_offer(request.pop("name"), catalogue.regularizers(), "[problem] regularizer")
    regularizer = offer.build(request, "[problem] regularizer")
    return Leading(regularizer, dim - 1) if settings["preprocess"]["intercept"] else regularizer


def privacy_of(settings: Settings) -> dict[str, Any]:
    """The arguments of `solve` that [privacy] stands for."""
    if settings["privacy"] is None:
        return {}
    from foedus.solve import solve

    request = dict(settings["privacy"])
    if request["noise"] is None:
        del request["noise"], request["budget"]
        total = catalogue.totals()["Local"].build(request, "[privacy]")
        preparation = fit_arguments(settings)
        figures = 3 * len(preparation["bounds"])
        if preparation["epsilon"] is not None and figures:  # as `preprocess.fit` shares it out
            total = replace(total, before=((preparation["epsilon"] / figures, figures),))
        return {"privacy": total}
    noise = catalogue.find_offer(request.pop("noise"), catalogue.noises(), "[privacy] noise")
    budget = request.pop("budget", None)
    arguments: dict[str, Any] = {"privacy": noise.build(request, "[privacy]")}
    if budget is not None:
        arguments["budget"] = budget
    if unknown := [name for name in arguments if name not in inspect.signature(solve).parameters]:
        raise FoedusError(f"[privacy]: this version of foedus has no {unknown[0]}.")
    return arguments


def rounds_of(settings: Settings, algorithm: Algorithm) -> int:
    """The most rounds of the run."""
    return int(settings["run"]["max_rounds"] or default_rounds(algorithm, privacy_of(settings).get("privacy")))


def runtime_of(settings: Settings) -> dict[str, Any]:
    """The argument of `solve` that says where rounds are played; none for this process."""
    request = dict(settings["run"]["runtime"])
    offer = catalogue.find_offer(request.pop("name"), catalogue.runtimes(), "[run] runtime")
    runtime = offer.build(request, "[run] runtime")
    return {} if runtime is None else {"runtime": runtime}


def split_mask(words: Any, place: str) -> tuple[str, str]:
    """'label 1' as ('label', '1')."""
    match = FORM.fullmatch(words.strip()) if isinstance(words, str) else None
    if match is None:
        hint = did_you_mean(words.split()[0], ("label", "group")) if isinstance(words, str) and words.split() else ""
        raise FoedusError(f"{place} must be 'label VALUE' or 'group VALUE'. Got {words!r} instead.{hint}")
    return match[1], match[2].strip()


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

    def row(request: Any, place: str) -> catalogue.Coefficients:
        numbers = isinstance(request, dict) and all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in request.values()
        )
        if not numbers or not request:
            raise FoedusError(f"{place} must be a table of feature = number. Got {request!r} instead.")
        features = names or list(request)
        for name in request:
            if name not in features:
                hint = did_you_mean(name, features)
                raise FoedusError(f"{place}: the model has no number {name!r}, only {tables.listing(features)}.{hint}")
        return catalogue.Coefficients({name: float(request.get(name, 0.0)) for name in features})

    constraints = []
    for number, one in enumerate(settings["constraints"], start=1):
        request, place = dict(one), f"[[constraints]] {number}"
        offer = catalogue.find_offer(request.pop("type"), catalogue.constraints(), place)
        _check_limit(offer.name, request.get("at_most"), place)
        constraints.append(offer.build(request, place, {Mask: read, Loss: _loss, catalogue.Coefficients: row}))
    return constraints


def _check_limit(kind: str, limit: Any, place: str) -> None:
    """A loss and a distance of two losses are never negative, so a cap below 0 cannot be kept by any model."""
    if kind not in ("LossCap", "LossGap"):
        return
    limits = limit.items() if isinstance(limit, Mapping) else [("", limit)]
    for site, value in limits:
        if isinstance(value, int | float) and value < 0:
            at = f" of {site!r}" if site else ""
            what = "a mean loss" if kind == "LossCap" else "the distance of two losses"
            raise FoedusError(
                f"{place} at_most{at} must be a number >= 0, for {what} is never negative. Got {value!r}."
            )


def fit_arguments(settings: Settings) -> dict[str, Any]:
    """The bounds and categories that the file states, and the privacy of the rest."""
    request = settings["preprocess"]
    bounds = {}
    for name, ends in (request["bounds"] or {}).items():
        numbers = isinstance(ends, list) and len(ends) == 2 and all(isinstance(e, int | float) for e in ends)
        if not numbers or not ends[0] < ends[1]:
            raise FoedusError(f"[preprocess.bounds] {name} must be [low, high] with low < high. Got {ends!r} instead.")
        bounds[name] = (float(ends[0]), float(ends[1]))
    categories = {}
    for name, words in (request["categories"] or {}).items():
        if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
            raise FoedusError(f"[preprocess.categories] {name} must be a list of texts. Got {words!r} instead.")
        categories[name] = tuple(words)
    epsilon = request["epsilon"]
    if epsilon is not None and not 0 < epsilon < float("inf"):
        raise FoedusError(f"[preprocess] epsilon must be a number > 0. Got {epsilon!r} instead.")
    return {"bounds": bounds, "categories": categories, "epsilon": epsilon, "seed": settings["seed"]}


# the problem


@dataclass(frozen=True)
class RunSetup:
    """Everything that one run needs."""

    settings: Settings
    cohort: Cohort
    rules: Preprocessing
    problem: Problem
    algorithm: Algorithm
    participation: Fraction
    privacy: dict[str, Any]

    def with_preparation(self, ledger: Ledger | None) -> Ledger | None:
        """The ledger with what the sites sent to prepare the data."""
        return None if ledger is None else prepared(ledger, self.rules.noted, self.rules.exact)


def build(
    settings: Settings, cohort: Cohort, rules: Preprocessing | None = None, clients: dict[str, Any] | None = None
) -> RunSetup:
    """The problem, the algorithm and who takes part, checked against each other.

    `clients` are the sites' arrays; those of the cohort's tables when left out.
    """
    if rules is None:
        rules = rules_of(settings, cohort)

    def read(words: Any, place: str) -> Where:
        return _mask(words, place, cohort)

    request = settings["problem"]
    clients = preprocess.sites_of(cohort, rules) if clients is None else clients
    stated_terms = {
        "loss": loss_of(settings),
        "where": None if request["where"] is None else read(request["where"], "[problem] where"),
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
        regularizer = (request["regularizer"] or {}).get("name", "")
        raise FoedusError(f"[algorithm]: {str(error).replace('Leading', regularizer)}") from None
    who = participation_of(settings)
    try:
        who.check(problem.terms.clients)
    except FoedusError as error:
        raise FoedusError(f"[participation]: {error}") from None
    privacy = _with_clip(_less_preparation(privacy_of(settings), rules), rules)
    return RunSetup(settings, cohort, rules, problem, algorithm, who, privacy)


def check_privacy(setup: RunSetup) -> None:
    """Raise, before any round, where `solve` would refuse what [privacy] asks for."""
    if not setup.privacy:
        return
    terms, limit = setup.problem.terms, rounds_of(setup.settings, setup.algorithm)
    try:
        arguments = (setup.privacy.get("privacy"), setup.privacy.get("budget"))
        private = attach(setup.algorithm, *arguments, setup.problem, limit)
        private.check(terms)
        prepare(setup.problem, private.resolve(terms), np.zeros(terms.dim))
    except FoedusError as error:
        raise FoedusError(f"[privacy]: {error}") from None


def _with_clip(privacy: dict[str, Any], rules: Preprocessing) -> dict[str, Any]:
    """The arguments of [privacy], with the usual clip for the columns that there are."""
    total = privacy.get("privacy")
    if not isinstance(total, Local) or total.clip is not None:
        return privacy
    return privacy | {"privacy": replace(total, clip=usual_clip(len(rules.columns) + rules.intercept))}


def _less_preparation(privacy: dict[str, Any], rules: Preprocessing) -> dict[str, Any]:
    """The arguments of [privacy], with what preparing the data has spent taken off the budget."""
    if rules.epsilon is None or "budget" not in privacy:
        return privacy
    rest = privacy["budget"] - rules.epsilon
    if rest <= 0:
        raise FoedusError(
            f"[privacy] budget: preparing the data spends epsilon {rules.epsilon:g} of {privacy['budget']:g}, which "
            "leaves nothing for the training; lower epsilon in [preprocess], or raise the budget."
        )
    return privacy | {"budget": rest}


def rules_of(settings: Settings, cohort: Cohort, answers: Answers | None = None) -> Preprocessing:
    """The preprocessing that [preprocess] asks for, found over the sites."""
    request = settings["preprocess"]
    arguments = {"scale": request["scale"], "intercept": request["intercept"]} | fit_arguments(settings)
    return preprocess.fit(cohort, **arguments, answers=answers)


def _mask(words: Any, place: str, cohort: Cohort) -> Where:
    kind, value = split_mask(words, place)
    if kind == "label" and not cohort.labels:
        try:
            return Where("y", float(value))
        except ValueError:
            raise FoedusError(f"{place} = {words!r}: the labels are numbers; expected one.") from None
    values = cohort.labels if kind == "label" else cohort.groups
    column = cohort.roles.label if kind == "label" else cohort.roles.group
    if column is None:
        raise FoedusError(f"{place} = {words!r} needs a group: name its column with group in [data].")
    if value not in values:
        hint = did_you_mean(value, values)
        raise FoedusError(
            f"{place} = {words!r}: the column {column!r} has no such value, only {tables.listing(values)}.{hint}"
        )
    return Where("y" if kind == "label" else "group", float(values.index(value)), value)
