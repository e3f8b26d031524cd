"""What an experiment shows about its model beside the certificate: the threshold, and figures on rows kept out."""

from collections.abc import Sequence

import numpy as np

from foedus.data import preprocess
from foedus.data.holdout import KeptOut, Shares
from foedus.data.preprocess import Category, Preprocessing
from foedus.data.sites import Cohort
from foedus.data.tables import Table
from foedus.errors import FoedusError
from foedus.evaluation import umbrella
from foedus.evaluation.coefficients import CoefficientTable, coefficients
from foedus.evaluation.evaluate import HELD_OUT, evaluation_of, masked_evaluation_of
from foedus.evaluation.rates import Decision, RateTerm, check_terms, decide, scores_for
from foedus.evaluation.rates import check_counts as check_rate
from foedus.evaluation.tally import Rule, tally
from foedus.experiment import build, catalogue
from foedus.experiment.build import RunSetup
from foedus.experiment.sweep import Settings
from foedus.run import Run


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
    return Shares(float(settings["evaluate"]["holdout"] or 0.0), threshold, int(settings["seed"]))


def check_settings(settings: Settings) -> None:
    """Raise where rows cannot be kept out as the file asks; no data are looked at."""
    share, rates = settings["evaluate"]["holdout"], rates_of(settings)
    if share is not None and not 0 < share < 1:
        raise FoedusError(f"[evaluate] holdout must be a number > 0 and < 1. Got {share!r} instead.")
    check_terms(rates)
    if rates and build.loss_of(settings).kind != "classification":
        raise FoedusError(f"[[constraints]]: {rates[0].name} is about two classes, and this loss predicts a number.")
    if rates and build.secure_of(settings):
        raise FoedusError(
            f"[[constraints]] {rates[0].name}: its threshold is chosen from counts of single sites, and with secure = "
            "true nobody sees those; cap the loss with LossCap, or leave secure out."
        )
    if settings["privacy"] is not None and (share is not None or rates):
        what = "[evaluate] holdout" if share is not None else f"[[constraints]] {rates[0].name}"
        raise FoedusError(
            f"{what}: the sites would send exact counts and sums of the rows they keep out, and under [privacy] no "
            "exact figure leaves a site; leave it out, or leave [privacy] out."
        )


def check_counts(settings: Settings, kept_out: KeptOut) -> None:
    """Raise where a site keeps too few rows out for a term on a rate."""
    labels = {site: kept_out.whole.y(table) for site, table in kept_out.threshold.items()}
    for term in rates_of(settings):
        check_rate(term, {site: int(np.sum((y > 0) == term.positive)) for site, y in labels.items()})


def add(run: Run, setup: RunSetup) -> None:
    """Add to a run the threshold that its terms on rates choose, and the figures on its held-out rows."""
    kept_out, run.rules = setup.kept_out, setup.rules
    if kept_out is None:
        return
    w = np.asarray(run.w)
    run.coefficients = coefficients_of(run, setup)
    run.decision = decision_of(rates_of(setup.settings), setup, kept_out, w)
    if any(table.rows for table in kept_out.held_out.values()):
        arrays = {site: _arrays(setup, table) for site, table in kept_out.held_out.items()}
        rule = Rule() if run.decision is None else run.decision.rule
        tallies = {site: tally(setup.problem.terms, w, rows, rule) for site, rows in arrays.items()}
        join = masked_evaluation_of if build.secure_of(setup.settings) else evaluation_of
        run.evaluations[HELD_OUT] = join(setup.problem.terms, tallies, run.decision)


def coefficients_of(run: Run, setup: RunSetup) -> CoefficientTable | None:
    """Return the coefficients in units of the data; None under privacy, and where errors are not known."""
    if run.ledger is not None or run.worst_case is not None or run.certificate.silent:
        return None
    try:
        w = np.asarray(run.w)
        return coefficients(setup.problem, w, run.multipliers, names=setup.rules.names, units=units_of(setup.rules))
    except FoedusError:
        return None


def units_of(rules: Preprocessing) -> np.ndarray:
    """Return the matrix that turns the model's numbers into those for raw columns: per unit, not per deviation."""
    T = np.eye(len(rules.names))
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


def whole_of(setup: RunSetup) -> Cohort:
    """Return the cohort with all its rows, also those that take no part in training."""
    return setup.cohort if setup.kept_out is None else setup.kept_out.whole


def _arrays(setup: RunSetup, table: Table) -> tuple[np.ndarray, ...]:
    return preprocess.arrays_of(setup.cohort, setup.rules, table)


def decision_of(terms: Sequence[RateTerm], setup: RunSetup, kept_out: KeptOut, w: np.ndarray) -> Decision | None:
    """Play the umbrella rule over the rows that the sites keep out for it."""
    if not terms:
        return None
    scores: dict[str, dict[str, np.ndarray]] = {}
    arrays = {site: _arrays(setup, table) for site, table in kept_out.threshold.items()}
    for term in terms:
        scores[term.name] = {site: scores_for(term, rows[0] @ w, rows[1]) for site, rows in arrays.items()}
    counts = {name: {site: len(mine) for site, mine in sites.items()} for name, sites in scores.items()}

    def ask(term: RateTerm, cut: float) -> list[int]:
        return [umbrella.below(mine, cut) for mine in scores[term.name].values()]

    return decide(terms, counts, ask)
