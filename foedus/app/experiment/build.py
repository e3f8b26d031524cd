"""Turns the settings of one run into its problem, algorithm, participation and privacy."""

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from foedus.app.experiment import catalogue
from foedus.app.experiment.sweep import Settings
from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.data import preprocess, tables
from foedus.data.holdout import KeptOut
from foedus.data.partition import Sites
from foedus.data.preprocess import FIGURES, Preprocessing
from foedus.data.sites import Cohort
from foedus.data.sums import Answers
from foedus.federation.flare.driver import Flare
from foedus.privacy.beside_training import with_preparation
from foedus.privacy.central import Central
from foedus.privacy.ledger import Ledger
from foedus.privacy.noise import Noise
from foedus.privacy.releasing import Releasing, check_data, make_private
from foedus.privacy.releasing import rounds_of as rounds_with
from foedus.privacy.total import Local, usual_clip
from foedus.problem.constraints import Constraint, check_caps
from foedus.problem.losses import Loss
from foedus.problem.penalties import BesideIntercept, Penalty
from foedus.problem.problem import Problem
from foedus.problem.regularizers import Leading, Regularizer
from foedus.problem.terms import Mask, Where
from foedus.problem.weights import SiteWeights, Weights
from foedus.protocol.algorithm import Algorithm, Fit
from foedus.protocol.participation import Coverage, Fraction
from foedus.statistics.sandwich import check_terms
from foedus.sums.masking import by_sums, check_shares, masking_of

MASK = re.compile(r"(label|group)\s+(\S.*)")  # as in where = "label 1"


class PrivacyArguments(TypedDict, total=False):
    """The arguments of `solve` that [privacy] stands for; empty without that section."""

    privacy: Local | Noise
    budget: float


class RuntimeArguments(TypedDict, total=False):
    """The arguments of `solve` that say where rounds are played, and who sees what; empty for this process."""

    runtime: Flare
    secure: bool


class FitArguments(TypedDict):
    """The arguments of `preprocess.fit` that [preprocess] states."""

    bounds: dict[str, tuple[float, float]]
    categories: dict[str, tuple[str, ...]]
    epsilon: float | None
    seed: int


# what needs no data


def algorithm_of(settings: Settings) -> Algorithm:
    """Return the algorithm with its settings; one with a setting for the intercept gets that of [preprocess]."""
    request = dict(settings["algorithm"])
    offer = catalogue.find_algorithm(request.pop("name"), "[algorithm]")
    if "noise" in request:
        raise FoedusError("[algorithm] noise: noise is asked for in a section of its own, [privacy].")
    if "intercept" in offer.parameters:
        request.setdefault("intercept", settings["preprocess"]["intercept"])
    return offer.build(request, "[algorithm]", {Loss: _loss})


def participation_of(settings: Settings) -> Fraction:
    """Return which sites take part in each round."""
    request = settings["participation"]
    try:
        if request["every"] is None:
            return Fraction(float(request["fraction"]), float(request["dropout"]))
        return Coverage(float(request["fraction"]), float(request["dropout"]), int(request["every"]))
    except FoedusError as error:
        raise FoedusError(f"[participation]: {error}") from None


def _loss(request: object, place: str) -> Loss:
    """The loss that a name, or a table with a name and settings, asks for."""
    rest = dict(request) if isinstance(request, Mapping) else {"name": request}
    offer = catalogue.find_offer(rest.pop("name", None), catalogue.losses(), place)
    return offer.build(rest, place)


def loss_of(settings: Settings) -> Loss:
    """Return the loss of one row."""
    return _loss(settings["problem"]["loss"], "[problem] loss")


def penalty_of(settings: Settings) -> Penalty | None:
    """Return the penalty, which leaves the intercept out."""
    if settings["problem"]["penalty"] is None:
        return None
    request = dict(settings["problem"]["penalty"])
    offer = catalogue.find_offer(request.pop("name"), catalogue.penalties(), "[problem] penalty")
    penalty = offer.build(request, "[problem] penalty")
    return BesideIntercept.of(penalty) if settings["preprocess"]["intercept"] else penalty


def regularizer_of(settings: Settings, dim: int) -> Regularizer | None:
    """Return the regulariser of a model of `dim` numbers, which leaves the intercept out."""
    if settings["problem"]["regularizer"] is None:
        return None
    request = dict(settings["problem"]["regularizer"])
    offer = catalogue.find_offer(request.pop("name"), catalogue.regularizers(), "[problem] regularizer")
    regularizer = offer.build(request, "[problem] regularizer")
    return Leading(regularizer, dim - 1) if settings["preprocess"]["intercept"] else regularizer


def counts_rows(settings: Settings) -> bool:
    """Return whether sites weigh by their number of rows."""
    return settings["problem"]["weights"] == "rows"


def weights_of(settings: Settings, rules: Preprocessing) -> Weights:
    """Return how the sites weigh; by rows with the total that they have told, so that no party needs all counts."""
    if counts_rows(settings) and settings["problem"]["where"] is None and rules.total_rows is not None:
        return SiteWeights("rows", float(rules.total_rows))
    return settings["problem"]["weights"]


def privacy_of(settings: Settings) -> PrivacyArguments:
    """Return the arguments of `solve` that [privacy] stands for."""
    if settings["privacy"] is None:
        return {}
    from foedus.app.solve import solve

    if (missing := settings["data"]["missing"]) != "mean":
        raise FoedusError(
            f"[data] missing = {missing!r}: under [privacy] the number of rows must not depend on what is in them; "
            "write missing = 'mean', which fills in."
        )
    request = dict(settings["privacy"])
    if request["noise"] is None:
        del request["noise"], request["budget"]
        offer = catalogue.find_offer(request.pop("kind", "local"), catalogue.totals(), "[privacy] kind")
        total = offer.build(request, "[privacy]")
        if isinstance(total, Central) and not secure_of(settings):
            raise FoedusError(
                '[privacy] kind = "central": each site adds a share of the noise, which does not protect its reply '
                'alone; write secure = true in [run], so that only sums are seen, or kind = "local".'
            )
        preparation = fit_arguments(settings)
        figures = FIGURES * len(preparation["bounds"])
        if preparation["epsilon"] is not None and figures:
            # the preparation is part of the total: `preprocess.fit` spends its epsilon in equal parts on all figures
            total = replace(total, before=((preparation["epsilon"] / figures, figures),))
        return {"privacy": total}
    noise = catalogue.find_offer(request.pop("noise"), catalogue.noises(), "[privacy] noise")
    budget = request.pop("budget", None)
    arguments: PrivacyArguments = {"privacy": noise.build(request, "[privacy]")}
    if budget is not None:
        arguments["budget"] = budget
    if unknown := [name for name in arguments if name not in inspect.signature(solve).parameters]:
        raise FoedusError(f"[privacy]: this version of foedus has no {unknown[0]}.")
    return arguments


def rounds_of(settings: Settings, algorithm: Algorithm, problem: Problem) -> int:
    """Return the most rounds of the run."""
    return int(settings["run"]["max_rounds"] or rounds_with(privacy_of(settings).get("privacy"), algorithm, problem))


def runtime_of(settings: Settings) -> RuntimeArguments:
    """Return the arguments of `solve` that say where rounds are played, and whether only sums over sites are seen."""
    request = dict(settings["run"]["runtime"])
    offer = catalogue.find_offer(request.pop("name"), catalogue.runtimes(), "[run] runtime")
    runtime = offer.build(request, "[run] runtime")
    secure = settings["run"].get("secure") is True
    if runtime is None:
        return {"secure": True} if secure else {}
    return {"runtime": replace(runtime, secure=runtime.secure or secure)}


def secure_of(settings: Settings) -> bool:
    """Return whether the server sees masked sums alone."""
    arguments = runtime_of(settings)
    return arguments["runtime"].secure if "runtime" in arguments else arguments.get("secure", False)


def split_mask(words: object, place: str) -> tuple[str, str]:
    """Split 'label 1' into ('label', '1')."""
    match = MASK.fullmatch(words.strip()) if isinstance(words, str) else None
    if match is None:
        hint = did_you_mean(words.split()[0], ("label", "group")) if isinstance(words, str) and words.split() else ""
        raise FoedusError(f"{place} must be 'label VALUE' or 'group VALUE'. Got {words!r} instead.{hint}")
    return match[1], match[2].strip()


def check_masks(settings: Settings) -> None:
    """Check the form of everything that names a label or a group, before the data say which there are."""

    def read(words: object, place: str) -> Where:
        kind, _ = split_mask(words, place)
        if kind == "group" and settings["data"]["group"] is None and settings["data"]["set"] is None:
            raise FoedusError(f"{place} = {words!r} needs a group: name its column with group in [data].")
        return Where("y" if kind == "label" else "group", 0.0)

    if settings["problem"]["where"] is not None:
        read(settings["problem"]["where"], "[problem] where")
    constraints_of(settings, read)


def constraints_of(
    settings: Settings, read: Callable[[object, str], Mask], names: list[str] | None = None
) -> list[Constraint]:
    """Return the constraints.

    `read` makes the mask that words such as 'label 1' name; `names` are those of the model's numbers, once the columns
    have been read.
    """

    def row(request: object, place: str) -> catalogue.Coefficients:
        if (
            not isinstance(request, dict)
            or not request
            or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in request.values())
        ):
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
        if one["type"] in catalogue.rates():
            continue  # a term on a rate chooses a threshold after training, and takes no part in it
        offer = catalogue.find_offer(request.pop("type"), catalogue.constraints(), place)
        if isinstance(limit := request.get("at_most"), Mapping):  # TOML has no null, so a file says "none"
            request["at_most"] = {site: None if value == "none" else value for site, value in limit.items()}
        _check_limit(offer.name, request.get("at_most"), place)
        constraints.append(offer.build(request, place, {Mask: read, Loss: _loss, catalogue.Coefficients: row}))
    return constraints


def _check_limit(kind: str, limit: object, place: str) -> None:
    """Raise where a cap is below 0: no model could keep it, for losses and distances of losses are never negative."""
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


def fit_arguments(settings: Settings) -> FitArguments:
    """Return the bounds and categories that the file states, and the privacy of what the sites send beside them."""
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
    return {"bounds": bounds, "categories": categories, "epsilon": request["epsilon"], "seed": settings["seed"]}


# the problem


@dataclass(frozen=True)
class RunSetup:
    """Everything that one run needs, checked."""

    settings: Settings
    cohort: Cohort
    rules: Preprocessing
    problem: Problem
    algorithm: Algorithm
    participation: Fraction
    privacy: PrivacyArguments
    kept_out: KeptOut | None = None  # the rows that take no part in training, where the data are here
    table_one: Json | None = None  # who the rows are, where the data are here and nothing about them is hidden

    def with_preparation(self, ledger: Ledger | None) -> Ledger | None:
        """Return the ledger of a run, with the figures that the sites sent to prepare the data added to it."""
        return None if ledger is None else with_preparation(ledger, self.rules.noted, self.rules.exact)


def build(
    settings: Settings,
    cohort: Cohort,
    rules: Preprocessing | None = None,
    clients: Sites | None = None,
    *,
    release: bool = False,
) -> RunSetup:
    """Build the problem, the algorithm and the participation, and check them against each other.

    `clients` are the sites' arrays; those of the cohort's tables when left out, which with `release` let go of their
    rows.
    """
    if rules is None:
        rules = rules_of(settings, cohort)

    def read(words: object, place: str) -> Where:
        return mask_of(words, place, cohort)

    request = settings["problem"]
    arrays = preprocess.stacked_of(cohort, rules, release) if clients is None else clients
    loss, penalty = loss_of(settings), penalty_of(settings)
    where = None if request["where"] is None else read(request["where"], "[problem] where")
    constraints = constraints_of(settings, read, rules.names)
    regularizer = regularizer_of(settings, len(rules.names))
    server = None if cohort.server is None else preprocess.arrays_of(cohort, rules, cohort.server)
    try:
        problem = Problem(
            arrays,
            loss=loss,
            where=where,
            penalty=penalty,
            constraints=constraints,
            regularizer=regularizer,
            server=server,
            weights=weights_of(settings, rules),
        )
    except FoedusError as error:
        # the library speaks of clients; whoever writes an experiment file knows them as sites
        raise FoedusError(str(error).replace("client ", "site ", 1)) from None
    if (errors := settings["summary"]["errors"]) is not None:
        try:
            check_terms(problem.terms, errors)
        except FoedusError as error:
            raise FoedusError(f"[summary]: {error}") from None
    try:
        check_caps(problem.terms)
    except FoedusError as error:
        raise FoedusError(f"[[constraints]]: {error}") from None
    if "runtime" in runtime_of(settings) and importlib.util.find_spec("nvflare") is None:
        raise FoedusError("[run] runtime: sites of their own need NVIDIA FLARE: pip install 'foedus[flare]'.")
    algorithm = algorithm_of(settings)
    private = privacy_of(settings)
    try:
        # one that has a private form is fitted together with its noise: some are for private training alone
        algorithm = algorithm if private and isinstance(algorithm, Releasing) else algorithm.fit(problem).algorithm
    except FoedusError as error:
        # `Leading` only takes the intercept out of the regulariser; the file knows the one inside it
        name = (request["regularizer"] or {}).get("name", "")
        raise FoedusError(f"[algorithm]: {str(error).replace('Leading', name)}") from None
    who = participation_of(settings)
    try:
        who.check(problem.terms.clients)
    except FoedusError as error:
        raise FoedusError(f"[participation]: {error}") from None
    privacy = _with_clip(_less_preparation(private, rules), rules, algorithm, problem)
    return RunSetup(settings, cohort, rules, problem, algorithm, who, privacy)


def _with_clip(
    privacy: PrivacyArguments, rules: Preprocessing, algorithm: Algorithm, problem: Problem
) -> PrivacyArguments:
    """The arguments with a clip: where the file states none, the usual one for this number of columns."""
    total = privacy.get("privacy")
    if not isinstance(total, Local) or total.clip is not None:
        return privacy
    columns = len(rules.columns) + rules.intercept
    clip = algorithm.usual_clip(problem.terms, columns) if isinstance(algorithm, Releasing) else usual_clip(columns)
    return {**privacy, "privacy": replace(total, clip=clip)}


def _less_preparation(privacy: PrivacyArguments, rules: Preprocessing) -> PrivacyArguments:
    """The arguments with the budget that is left for the training, after what preparing the data has spent."""
    if rules.epsilon is None or "budget" not in privacy:
        return privacy
    rest = privacy["budget"] - rules.epsilon
    if rest <= 0:
        raise FoedusError(
            f"[privacy] budget: preparing the data spends epsilon {rules.epsilon:g} of {privacy['budget']:g}, which "
            "leaves nothing for the training; lower epsilon in [preprocess], or raise the budget."
        )
    return {**privacy, "budget": rest}


def rules_of(settings: Settings, cohort: Cohort, answers: Answers | None = None) -> Preprocessing:
    """Fit the preprocessing that [preprocess] asks for, over the sites."""
    request = settings["preprocess"]
    return preprocess.fit(
        cohort,
        scale=request["scale"],
        intercept=request["intercept"],
        **fit_arguments(settings),
        secure=secure_of(settings),
        answers=answers,
        count_rows=counts_rows(settings),
        private=settings["privacy"] is not None,
        formula=settings["problem"]["formula"] or "",
    )


def mask_of(words: object, place: str, cohort: Cohort) -> Where:
    """Return the mask of the rows with a label or a group, by the number that stands for it in the arrays."""
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


def fit_of(setup: RunSetup) -> Fit:
    """Return the algorithm of a run, fitted with its noise; in the form that needs only sums where no more is seen."""
    algorithm, secure = setup.algorithm, secure_of(setup.settings)
    if setup.privacy:
        limit = rounds_of(setup.settings, algorithm, setup.problem)
        arguments = (setup.privacy.get("privacy"), setup.privacy.get("budget"))
        algorithm = make_private(algorithm, *arguments, setup.problem, limit)
    return (by_sums(algorithm) if secure else algorithm).fit(setup.problem)


def check_ready(setup: RunSetup) -> None:
    """Raise, before any round, where `solve` would refuse the privacy or the masked sums that a file asks for."""
    secure = secure_of(setup.settings)
    if not setup.privacy and not secure:
        return
    problem = setup.problem
    try:
        fit = fit_of(setup)
        check_shares(fit.algorithm, problem, setup.participation, secure)
        check_data(problem, fit.algorithm, np.zeros(problem.terms.dim))
    except FoedusError as error:
        raise FoedusError(f"{'[privacy]' if setup.privacy else '[run] secure'}: {error}") from None
    if secure:
        try:
            masking_of(fit.algorithm, problem.terms)
        except FoedusError as error:
            raise FoedusError(f"[run] secure: {error}") from None
