"""A run in plain words: what was asked, what came out, what to be careful about, what to do next.

The page, the model card and the terminal use the same sentences, for a reader who has not read the papers.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from foedus.base.files import Json
from foedus.base.notebook import at_most
from foedus.base.quantities import count, number
from foedus.certificate.measure import Row
from foedus.certificate.private import BROKEN, KEPT, UNTOLD
from foedus.problem.losses import class_of
from foedus.problem.weights import in_words
from foedus.runtime.run import Run
from foedus.runtime.spine import DIVERGED


def cap_words(caps: list[float]) -> str:
    """Return one cap, or the range of several."""
    return number(caps[0]) if len(caps) == 1 else f"its own cap, from {number(caps[0])} to {number(caps[-1])}"


def join_names(names: list[str], most: int = 4) -> str:
    """Join the first few names for a sentence: "a, b and 3 others"."""
    items = names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} others"]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


NO_CONSTRAINTS = "No constraints were set."
MORE_ROUNDS = "Allow more rounds."
OR_AUTO = "Allow more rounds, or leave the algorithm to foedus (auto), which takes one that ends at the optimum."
UNFINISHED = "The stopping test was not met"
TINY = 1e-4  # of the objective: a smaller optimality gap is a footnote


@dataclass(frozen=True)
class Verdict:
    """How a run ended: a level, a title of a few words, sentences, and what to do next.

    The level is good, fair or bad; training where it is good and new rows have not confirmed it; going for a run that
    has not ended; or open for runs that have no winner. Footnotes are figures that few readers need.
    """

    level: str
    title: str
    sentences: tuple[str, ...]
    advice: tuple[str, ...] = ()
    footnotes: tuple[str, ...] = ()


def group_names(remarks: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join the names that have the same remark; return pairs of joined names and a remark."""
    together: dict[str, list[str]] = {}
    for name, text in remarks:
        together.setdefault(text, []).append(name)
    return [(join_names(names), text) for text, names in together.items()]


def objective(run: Run) -> str:
    """Return the objective, as the end of a sentence that begins with 'Minimise'."""
    terms: Json = run.settings.get("problem", {})
    loss, own = terms.get("loss"), terms.get("objective")
    if isinstance(loss, Mapping):
        kind = str(loss.get("name", ""))
        words = f"the mean {class_of(kind).words or kind}"
    elif own is not None:
        words = f"the objective {str(own).rsplit('.', 1)[-1]}"
    else:
        words = "the objective"
    where = terms.get("where")
    if isinstance(where, Mapping) and "value" in where:
        key = "label" if where.get("key") == "y" else str(where.get("key"))
        words += f" on examples with {key} {where.get('said') or number(float(where['value']))}"
    elif where is not None:
        words += " on a chosen part of the examples"
    if getattr(run, "worst_case", None) is not None:
        words += (
            f", after the worst shift of the data and of {count(len(run.names), 'site')}' weights that is allowed for"
        )
    else:
        words += f", {in_words(terms.get('weights')) or 'averaged over ' + count(len(run.names), 'site')}"
    for key, what in (("penalty", "penalty"), ("regularizer", "regulariser")):
        part = terms.get(key)
        inside = part.get("inside") if isinstance(part, Mapping) else None
        part = part if inside is None else inside
        name = part.get("name") if isinstance(part, Mapping) else part
        if name and name != "Zero":
            fields = part.items() if isinstance(part, Mapping) else ()
            figures = [f"{k} {number(v)}" for k, v in fields if type(v) in (int, float)]
            words += f", plus the {what} {name}" + (f" ({', '.join(figures)})" if figures else "")
            words += "" if inside is None else " of all but the intercept"
    return words


def terms(run: Run) -> list[str]:
    """Return a sentence for each constraint, from the rows of the certificate; only its kind if none were measured."""
    private = run.certificate.private
    if private is not None and not run.certificate.rows:
        return [f"{name} at most {cap_words(private.caps(name))}, at every site" for name in private.constraints]
    if run.certificate.silent:
        constraints = run.settings.get("problem", {}).get("constraints") or ()
        kinds = [str(c.get("name")) if isinstance(c, Mapping) else str(c) for c in constraints]
        return [f"{kind}, which was not measured" for kind in kinds]
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in run.certificate.rows:
        place = row.site if row.site in ("server", "all sites") and row.site not in run.names else "site"
        groups.setdefault((row.constraint, row.kind, place), []).append(row)
    sentences, exceptions = [], {constraint for _, constraint in run.certificate.left_out}
    for (constraint, kind, place), rows in groups.items():
        caps = sorted({row.cap for row in rows})
        place_words = {
            "server": "on the server's own data",
            "all sites": "on average over all sites",
            "site": "at every other site" if (constraint in exceptions) else "at every site",
        }[place]
        place_words = f"at {rows[0].site}" if place == "site" and len(rows) == 1 else place_words
        sentences.append(f"{constraint} {'equal to' if kind == '==' else 'at most'} {cap_words(caps)}, {place_words}")
    for row in run.certificate.counts:
        sentences.append(f"{row.constraint} {'equal to' if row.kind == '==' else 'at most'} its cap, at every site")
    sentences += run.certificate.exceptions()
    return sentences + ([] if run.decision is None else [term.words for term in run.decision.terms])


def caps_under_noise(run: Run) -> tuple[str, ...]:
    """Return sentences on the caps as they were measured under noise; none where they were not."""
    private = run.certificate.private
    if private is None:
        return ()
    counts = [sum(row.standing == name for row in private.rows) for name in (KEPT, BROKEN, UNTOLD)]
    return (
        f"Measured under noise, {number(counts[0])} of {count(len(private.rows), 'cap')} hold, {number(counts[1])} "
        f"are violated, and of {number(counts[2])} it cannot be told at this epsilon; each verdict by itself has "
        f"{100 * private.confidence:g} % confidence.",
        f"Measuring spent ε = {private.epsilon:.3g} at δ = {private.delta:g}, which is part of the total. Losses of "
        f"single examples are cut at L = {number(private.loss_clip)}: what one loses beyond that does not count.",
    )


def uncertified(run: Run) -> str | None:
    """Return why a run is not certified, as the end of a sentence; None if it converged and its constraints hold."""
    if run.settings.get("problem", {}).get("constraints") and not run.certificate.holds():
        return "its certificate does not hold: " + run.certificate.verdict().removeprefix("NOT certified: ")
    if run.decision is not None and run.decision.trouble is not None:
        return run.decision.trouble
    return None if run.converged else "it did not converge: " + run.reason


def worst(run: Run) -> Row | None:
    """Return the row with the least slack: the worst violation, or else the one closest to its cap."""
    rows = run.certificate.rows
    return min(rows, key=lambda row: -math.inf if math.isnan(row.slack) else row.slack) if rows else None


def constrained(run: Run) -> bool:
    """Whether a run promises anything about its sites: constraints that were measured, or rates by a threshold."""
    return bool(run.certificate.rows or run.certificate.counts or run.decision is not None)


def reason(run: Run) -> str:
    """Return why the run ended, without signs that only readers of the papers know, and without why the method."""
    text = run.reason.replace("‖∇f‖²", "the squared length of the gradient").replace("<=", "≤")
    return re.sub(r"; \w+ was chosen because [^;]*$", "", text)


def verdict(run: Run) -> Verdict:
    """Return in words what came out of a run in training; `evidence.head` adds what new rows say."""
    certificate, ending = run.certificate, _sentence(reason(run))
    if run.decision is not None and run.decision.trouble is not None:
        return Verdict("bad", "Not certified: no threshold does", (_sentence(run.decision.trouble), ending))
    if certificate.counts:
        return _of_counts(run, ending)
    if not certificate.rows:
        return _without_constraints(run, ending)
    tightest = worst(run)
    assert tightest is not None
    eps1, eps2 = certificate.eps1, certificate.eps2
    if certificate.holds():
        where = "site that it is about" if certificate.left_out else "site"
        promise = f"In training every constraint holds at every {where}" + (
            "" if certificate.feasibility == 0 else f", to within {number(certificate.feasibility)}"
        )
        gap, footnotes = optimality(run)
        exceptions = map(_sentence, certificate.exceptions())
        sentences = (*rates(run), f"{promise}.", *exceptions, *_price(run), _of_small_changes(run), *gap)
        return Verdict("good", "Certified", sentences, footnotes=footnotes)
    if not certificate.feasibility <= eps2:
        violations = [row for row in certificate.rows if not row.violation <= eps2]
        sites = list(dict.fromkeys(row.site for row in violations))
        hopeless = run.reason.startswith("no feasible point was found")
        first = f"{capital(tightest.constraint)} is {number(tightest.value)} at {tightest.site}, above the cap of "
        first = first if tightest.kind == "<=" else first.replace("above the cap of", "where it should equal")
        first += f"{number(tightest.cap)}; constraints are violated at {len(sites)} of {count(len(run.names), 'site')} "
        first += f"({join_names(sites)})."
        advice = (
            f"Raise the cap to about {number(_rounded_up(tightest.value))}, which the model found here satisfies, and "
            "run again."
            if tightest.kind == "<="
            else "Relax the equality, or check the data it is stated on.",
            f"Or look at {tightest.site}: mislabelled rows or a missing feature there make a cap unreachable.",
        )
        if hopeless:
            return Verdict("bad", "Infeasible: these constraints cannot be met", (f"{first} {ending}",), advice)
        return Verdict(
            "bad",
            "Not certified: constraints are violated",
            (first, ending),
            ("Allow more rounds: the run had not settled.", *advice) if not run.converged else advice,
        )
    short = [
        f"{name} is {number(value)}, above its tolerance of {number(eps)}"
        for name, value, eps in (
            ("stationarity", certificate.stationarity, eps1),
            ("complementarity", certificate.complementarity, eps2),
            ("the distance to the normal cone of the multipliers", certificate.distance, eps2),
        )
        if not value <= eps
    ]
    return Verdict(
        "fair",
        "Constraints hold, optimality not shown",
        (
            f"In training every constraint holds at every site, but {join_names(short)}: a better model may exist.",
            ending,
        ),
        ("Allow more rounds, or go on from the checkpoint.",) if not run.converged else (),
    )


def _of_small_changes(run: Run) -> str:
    """Return what is known of small changes of the model; "optimal" only where the curvature says a minimum."""
    c = run.certificate
    if c.kind == "minimum" and c.gap is not None and math.isfinite(c.gap):
        better = "no small change within the limits improves it by more than the tolerance"
        return f"It is optimal: {better}, {number(c.eps1)}."
    return (
        f"It meets the first-order conditions of optimality to within {number(c.eps1)}. Whether a change within the "
        "limits improves it, these do not tell."
    )


def rates(run: Run) -> tuple[str, ...]:
    """Return a sentence on each rate that the threshold bounds, and one on the threshold itself."""
    decision = run.decision
    if decision is None or decision.trouble is not None:
        return ()
    return decision.sentences(log_odds=run.log_odds)


def threshold(run: Run) -> str:
    """Return the threshold that was chosen: as a probability where scores are log-odds, else as a score."""
    assert run.decision is not None
    return run.decision.threshold(log_odds=run.log_odds)


def plan(run: Run) -> list[tuple[str, str]]:
    """Return the plan that real sites have agreed to, by name; nothing for a simulation."""
    if (one := getattr(run, "plan", None)) is None:
        return []
    sums = {
        "plain": "the server sees each site's answers",
        "masked": "the server sees masked sums alone",
        "masked and checked": "the server sees masked sums alone, and every site adds them up itself",
    }
    kind, _, noise = str(one["sums"]).partition(", ")
    what = f"at most {count(one['max_rounds'], 'round')}, in each {count(one['numbers'], 'number')} of a site"
    return [
        ("Digest", str(one["digest"])),
        ("Signed by", str(one["signed_by"] or "nobody")),
        ("Sites", ", ".join(one["sites"])),
        ("Sums", sums[kind] + (f"; {noise}" if noise else "")),
        ("Limits", what),
    ]


def counts_of_constraints(run: Run) -> tuple[str, ...]:
    """Return at how many sites each constraint holds, where masked sums show no more than that; none otherwise."""
    counts = [f"{c.constraint} holds at {number(c.kept)} of {count(c.sites, 'site')}" for c in run.certificate.counts]
    remark = "Which sites these are, and their figures, is known to the sites alone: a yes or no of each was added up."
    return (_sentence("; ".join(counts)), remark) if counts else ()


def _of_counts(run: Run, ending: str) -> Verdict:
    """Return the verdict on constraints of which only the number of sites where they hold is known."""
    c, counts = run.certificate, counts_of_constraints(run)
    if c.holds():
        gap, footnotes = optimality(run)
        return Verdict("good", "Certified", (*rates(run), *counts, *gap, ending), footnotes=footnotes)
    if not c.feasibility <= c.eps2:
        advice = ("Raise the cap, and run again.",)
        return Verdict("bad", "Not certified: constraints are violated", (*counts, ending), advice)
    return Verdict("fair", "Constraints hold, optimality not shown", (*counts, ending))


def gap_tile(run: Run) -> tuple[str, str, str]:
    """Return the title, the figure and the note that say how far a run is from the best possible objective."""
    certificate = run.certificate
    if certificate.contradiction is not None:
        proved = "; they contradict each other" if certificate.contradiction.convex else ""
        return "Infeasible", number(certificate.feasibility), "the largest violation" + proved
    bound = certificate.proved_bound(run.objective)
    if bound is not None:
        return "Optimality gap", number(float(at_most(bound))), "at most; proved by the ridge"
    if certificate.gap is not None and math.inf > certificate.gap <= certificate.room(run.objective):
        return "Optimality gap", number(certificate.gap), "about; an estimate"
    return "Stationarity", number(certificate.stationarity), "distance from optimality; 0 is exact"


def optimality(run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what is known of the distance to the best possible objective: as sentences, or as footnotes if tiny."""
    if getattr(run, "worst_case", None) is not None:
        return (), ()
    certificate = run.certificate
    sentence = certificate.optimality(run.objective)
    if sentence is None:
        return (), ()
    bound = certificate.proved_bound(run.objective)
    gap = bound if bound is not None else certificate.gap
    is_measured = certificate.kind == "minimum" and certificate.contradiction is None
    is_tiny = is_measured and gap is not None and gap <= TINY * abs(run.objective)
    return ((), (_sentence(sentence),)) if is_tiny else ((_sentence(sentence),), ())


def not_measured(run: Run) -> str:
    """Return the sentence that replaces figures which the sites do not send under privacy."""
    silent = run.certificate.silent
    return (
        f"Objective and certificate were not measured: under privacy {count(len(silent), 'site')} of "
        f"{len(run.names)} sent no exact figure."
    )


def _without_constraints(run: Run, ending: str) -> Verdict:
    none_set = "" if run.decision is not None else f"{NO_CONSTRAINTS} "
    residual = f"At the returned model the largest entry of the gradient is {number(run.certificate.stationarity)}; "
    residual += "0 would be exact."
    stress = getattr(run, "worst_case", None)
    if stress is not None:
        residual = f"After the worst shift of the data that was allowed for the loss is {number(stress.value)}; on the "
        residual += f"data as they are it is {number(run.objective)}. "
        residual += (
            "How far that is from the best possible worst case was not measured."
            if stress.gap is None
            else f"No model has a worst case that is lower by more than {number(float(at_most(stress.gap)))}."
        )
    if run.certificate.silent:
        if run.certificate.private is not None:
            return _under_noise(run, {row.standing for row in run.certificate.private.rows}, ending)
        unknown = "Whether the constraints hold is not known." if terms(run) else NO_CONSTRAINTS
        return Verdict("fair", "Ended under noise", (f"{unknown} {ending}", not_measured(run)))
    if not math.isfinite(run.objective) or run.reason.startswith(DIVERGED):
        return Verdict(
            "bad",
            "No usable model: the run diverged",
            (ending,),
            ("Use a smaller step size, or standardise the features.",),
        )
    if run.interrupted:
        return Verdict("fair", "Interrupted", (ending, residual), ("Run it again: it goes on from its checkpoint.",))
    if run.converged and run.decision is not None:
        return Verdict("good", "Certified", (*rates(run), ending), footnotes=(residual,))
    if run.converged:
        gap, footnotes = optimality(run)
        return Verdict("good", "Converged", (f"{none_set}{ending}", *gap), footnotes=(*footnotes, residual))
    if getattr(run, "ledger", None) is not None:
        advice = "With noise on what is sent there is no exact optimum to reach: look at the objective over the "
        advice += "rounds, and at fewer rounds with less noise in each."
        return Verdict("fair", "Ended under noise", (f"{none_set}{ending}", residual), (advice,))
    if stress is None and run.certificate.stationarity <= run.certificate.eps1:
        near = f"{residual} A certificate would count this as optimal (up to {number(run.certificate.eps1)}), but the "
        return Verdict(
            "fair",
            "Stopped near the optimum",
            (f"{none_set}{ending}", f"{near}run's own stopping test was not met."),
            ("Allow more rounds if the stopping test matters to you.",),
        )
    return Verdict(
        "fair",
        "Stopped before converging",
        (f"{none_set}{ending}", residual),
        (MORE_ROUNDS if run.settings.get("algorithm", {}).get("name") == "InteriorPoint" else OR_AUTO,),
    )


def _under_noise(run: Run, standings: set[str], ending: str) -> Verdict:
    """Return the verdict on caps that were measured under noise alone."""
    title = "A cap is broken" if BROKEN in standings else "Some caps cannot be told"
    title = ("Every cap is kept" if standings == {KEPT} else title) + ", as measured under noise"
    level = "bad" if BROKEN in standings else "fair"
    advice = ("Raise epsilon, or bring more rows: the intervals are then narrower.",) if UNTOLD in standings else ()
    return Verdict(level, title, (*caps_under_noise(run), ending, not_measured(run)), advice)


def _price(run: Run) -> tuple[str, ...]:
    """Return which constraints bind and what they cost, from their multipliers."""
    binding = sorted((r for r in run.certificate.rows if r.multiplier > 0), key=lambda row: -row.multiplier)
    if not binding:
        return ("No cap is binding: the constraints cost nothing here.",)
    first = binding[0]
    sites = list(dict.fromkeys(row.site for row in binding))
    step = 0.05 * abs(first.cap) if first.cap else 0.01
    place = "" if first.site == "all sites" else f" at {first.site}"
    which = f"The cap on {first.constraint}{place}"
    which = (
        f"{which} is binding" if len(binding) == 1 else f"Caps are binding at {join_names(sites)}. {which} costs most"
    )
    return (
        f"{which}: raising it by {number(step)} would lower the objective by about {number(first.multiplier * step)}.",
    )


def _rounded_up(value: float) -> float:
    """Return `value` rounded up to two digits."""
    if not math.isfinite(value) or value == 0:
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return math.ceil(value / unit + 1e-9) * unit


def capital(words: str) -> str:
    """Return the words with a capital at their beginning."""
    return words[:1].upper() + words[1:]


def _sentence(words: str) -> str:
    words = capital(words.strip())
    return words + ("" if words.endswith((".", "!", "?")) else ".")


def warnings(run: Run, present: np.ndarray | None = None) -> list[str]:
    """Return what a careful reader should know before using the model.

    `present` tells who answered in each round, shape (rounds, sites), if it is known.
    """
    remarks = []
    if run.interrupted:
        remarks.append("The run was interrupted; the figures are those of the last model it had.")
    elif not run.converged:
        remarks.append(f"{UNFINISHED}: {reason(run)}.")
    if "times its tolerance" in run.reason and run.converged:
        remarks.append(_sentence(run.reason))
    requests, replies = run.history.get("asked"), run.history.get("answered")
    if requests is not None and replies is not None and len(requests):
        lost_replies = int(np.sum(requests) - np.sum(replies))
        if lost_replies:
            remarks.append(f"{number(lost_replies)} of {number(int(np.sum(requests)))} replies were lost.")
    if present is not None and len(present):
        silent = [
            name for name, answered in zip(run.names, np.any(present, axis=0).tolist(), strict=True) if not answered
        ]
        if silent:
            remarks.append(f"{join_names(silent)} never answered: the model rests on the other sites' data.")
    for name, why in getattr(run, "left_out", {}).items():
        remarks.append(f"{name} was left out {why}. Model and certificate are those of the other sites.")
    if refusals := getattr(run, "refused", ()):
        remarks.append(f"Replies that were not accepted: {number(len(refusals))}; the last of {refusals[-1]}.")
    if getattr(run, "ledger", None) is not None and not run.certificate.silent:
        remarks.append(
            "Objective and certificate are measured on the data itself: they are not covered by the privacy guarantee, "
            "and neither is this page."
        )
    bad = [name for name, values in run.history.items() if _breaks(values)]
    if bad:
        remarks.append(f"The history of {join_names(bad)} holds values that are not finite.")
    constraints = run.settings.get("problem", {}).get("constraints") or ()
    if any(isinstance(c, Mapping) and c.get("name") == "LossGap" for c in constraints):
        remarks.append(
            "A cap on a difference of losses is not convex: another start may lead to another certified model."
        )
    if run.settings.get("algorithm", {}).get("name") == "CentralProxAL":
        remarks.append("All data were pooled in one place: this run is for comparison, and is not federated.")
    return remarks


def _breaks(values: np.ndarray) -> bool:
    """Whether a series that has become finite is not finite later."""
    if values.dtype.kind != "f" or values.ndim != 1:
        return False
    finite = np.isfinite(values)
    return bool(finite.any() and not finite[int(np.argmax(finite)) :].all())
