"""What an experiment shows about its model beside the certificate: the threshold, and figures on rows kept out."""

from collections.abc import Sequence

import numpy as np

from foedus.app.experiment import build, catalogue
from foedus.app.experiment.build import RunSetup
from foedus.app.experiment.sweep import Settings
from foedus.base.errors import FoedusError
from foedus.data import preprocess
from foedus.data.holdout import KeptOut, Shares
from foedus.data.preprocess import Category, Preprocessing
from foedus.data.tables import Table
from foedus.privacy.beside_training import with_evaluation
from foedus.privacy.ledger import Ledger
from foedus.privacy.noise import Sound
from foedus.privacy.total import Local
from foedus.problem.terms import Terms
from foedus.runtime.run import Run
from foedus.statistics.coefficients import CoefficientTable, coefficients
from foedus.statistics.evaluate import HELD_OUT, evaluation_of, here
from foedus.statistics.noisy import EvaluationNoise
from foedus.statistics.rates import Decision, RateTerm, check_sums, check_terms, decide
from foedus.statistics.rates import check_counts as check_rate

LIMITS = ("epsilon", "delta")


def rates_of(settings: Settings) -> list[RateTerm]:
    """Return the terms on miss rates and false alarms."""
    terms = []
    for number, one in enumerate(settings["constraints"], start=1):
        request = dict(one)
        offer = catalogue.rates().get(request.pop("type"))
        if offer is not None:
            terms.append(offer.build(request, f"[[constraints]] {number}"))
    return terms


def shares_of(settings: Settings) -> Shares:
    """Return the shares of rows that the sites keep out of training."""
    threshold = max((term.holdout for term in rates_of(settings)), default=0.0)
    share = float(settings["evaluate"]["holdout"] or 0.0)
    return Shares(share, threshold, int(settings["seed"]), by_class=settings["privacy"] is None)


def noise_of(settings: Settings) -> EvaluationNoise | None:
    """Return what an evaluation spends of the rows that are held out; None where its figures are exact.

    A row is either trained on or held out, so the whole of the run's total is there for the evaluation too.
    """
    request, total = settings["evaluate"], build.privacy_of(settings).get("privacy")
    if total is None or request["holdout"] is None:
        if request["epsilon"] is not None or request["delta"] is not None:
            name = "epsilon" if request["epsilon"] is not None else "delta"
            raise FoedusError(f"[evaluate] {name} goes with [privacy] and with holdout; leave it out, or add them.")
        return None
    if isinstance(total, Local):
        epsilon, delta = (request[key] if request[key] is not None else getattr(total, key) for key in LIMITS)
        for key, value in zip(LIMITS, (epsilon, delta), strict=True):
            if value > getattr(total, key):
                raise FoedusError(
                    f"[evaluate] {key} must be at most the {key} of [privacy], {getattr(total, key):g}: a row that is "
                    f"held out is promised the same total. Got {value!r} instead."
                )
        if delta == 0 < total.delta:
            raise FoedusError("[evaluate] delta must be > 0 where that of [privacy] is. Got 0 instead.")
    else:
        if not isinstance(total, Sound):
            raise FoedusError("[evaluate] holdout: this noise has no guarantee, which the figures could be part of.")
        epsilon, delta = request["epsilon"], request["delta"] or 0.0
        if epsilon is None:
            raise FoedusError(
                "[evaluate] epsilon is missing: [privacy] states the noise of one release and no total, so say what "
                "the figures may spend of each row that is held out."
            )
    try:
        sampler = "opendp" if "runtime" in build.runtime_of(settings) else total.sampler
        return EvaluationNoise(float(epsilon), float(delta), sampler)
    except FoedusError as error:
        raise FoedusError(f"[evaluate]: {error}") from None


def with_figures(ledger: Ledger | None, terms: Terms, noise: EvaluationNoise | None) -> Ledger | None:
    """Return the ledger of a run with what the evaluation spent of the rows that were held out."""
    if ledger is None or noise is None:
        return ledger
    return with_evaluation(ledger, noise.releases(terms), noise.delta)


def check_settings(settings: Settings) -> None:
    """Raise where rows cannot be kept out as the file asks; no data are looked at."""
    rates = rates_of(settings)
    check_terms(rates)
    if build.secure_of(settings) and any(term.skip for term in rates):
        raise FoedusError(
            "[[constraints]] skip: under secure = true nobody knows which sites keep too few rows out for a bound, so "
            "that none can be left out; leave skip out, or secure."
        )
    if settings["summary"]["errors"] is not None:
        if settings["privacy"] is not None:
            raise FoedusError(
                "[summary]: the sites would send exact sums of their rows, and under [privacy] no exact figure leaves "
                "them; leave one of the two out."
            )
        if not build.loss_of(settings).likelihood:
            raise FoedusError(
                f"[summary]: {build.loss_of(settings).name} is no likelihood, so it has no standard errors."
            )
    if rates and build.loss_of(settings).kind != "classification":
        raise FoedusError(f"[[constraints]]: {rates[0].name} is about two classes, and this loss predicts a number.")
    if settings["privacy"] is not None and rates:
        raise FoedusError(
            f"[[constraints]] {rates[0].name}: the sites would send exact counts of the rows they keep out, and under "
            "[privacy] no exact figure leaves a site; cap the loss with LossCap, or leave [privacy] out."
        )
    if noise_of(settings) is not None and build.loss_of(settings).kind != "classification":
        raise FoedusError(
            "[evaluate] holdout: under [privacy] a model is evaluated on two classes; the errors of a predicted number "
            "have no bound, so that no noise of a fixed size covers them. Leave it out, or leave [privacy] out."
        )


def check_counts(settings: Settings, kept_out: KeptOut) -> None:
    """Raise where a site keeps too few rows out for a term on a rate."""
    labels = {site: kept_out.whole.y(table) for site, table in kept_out.threshold.items()}
    check = check_sums if build.secure_of(settings) else check_rate
    for term in rates_of(settings):
        check(term, {site: int(np.sum((y > 0) == term.positive)) for site, y in labels.items()})


def add(run: Run, setup: RunSetup) -> None:
    """Add to a run the threshold that its terms on rates choose, and the figures on its held-out rows."""
    kept_out, run.rules = setup.kept_out, setup.rules
    if kept_out is None:
        return
    w = np.asarray(run.w)
    run.coefficients = coefficients_of(run, setup)
    if (errors := setup.settings["summary"]["errors"]) is not None:
        run.settings["summary"] = errors
    run.decision = decision_of(rates_of(setup.settings), setup, kept_out, w)
    if any(table.rows for table in kept_out.held_out.values()):
        arrays = {site: _arrays(setup, table) for site, table in kept_out.held_out.items()}
        noise, terms, seed = noise_of(setup.settings), setup.problem.terms, int(setup.settings["seed"])
        sites = here(arrays, noise, seed, secure=build.secure_of(setup.settings))
        run.evaluations[HELD_OUT] = evaluation_of(sites, terms, w, run.decision, noise, groups=setup.rules.groups)
        run.ledger = with_figures(run.ledger, terms, noise)


def coefficients_of(run: Run, setup: RunSetup) -> CoefficientTable | None:
    """Return the coefficients in units of the data; None under privacy, and where errors are not known."""
    if run.ledger is not None or run.worst_case is not None or run.certificate.silent:
        return None
    errors, w = setup.settings["summary"]["errors"], np.asarray(run.w)
    try:
        return coefficients(
            setup.problem, w, run.multipliers, names=setup.rules.names, units=units_of(setup.rules),
            errors=errors or "hessian", secure=build.secure_of(setup.settings),
        )  # fmt: skip
    except FoedusError:
        if errors is not None:
            raise
        return None


def units_of(rules: Preprocessing) -> np.ndarray:
    """Return the matrix that turns the model's numbers into those for raw columns: per unit, not per deviation."""
    T = np.eye(len(rules.names))
    if rules.formula:
        return T  # whose columns are those of the data
    place = 0
    for rule in rules.columns:
        if isinstance(rule, Category):
            place += len(rule.levels)
            continue
        T[place, place] = 1.0 / rule.scale
        if rules.intercept:
            T[-1, place] = -rule.shift / rule.scale
        place += 1
    return T


def _arrays(setup: RunSetup, table: Table) -> tuple[np.ndarray, ...]:
    return preprocess.arrays_of(setup.cohort, setup.rules, table)


def decision_of(terms: Sequence[RateTerm], setup: RunSetup, kept_out: KeptOut, w: np.ndarray) -> Decision | None:
    """Play the umbrella rule over the rows that the sites keep out for it."""
    if not terms:
        return None
    arrays = {site: _arrays(setup, table) for site, table in kept_out.threshold.items()}
    return decide(here(arrays, secure=build.secure_of(setup.settings)), terms, w)
