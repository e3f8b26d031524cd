"""The model card: a page of Markdown that describes a model, its certificate and its limits, to pass on with it."""

import math
import re
from collections.abc import Mapping, Sequence

from foedus.app.report import evidence, sections, sites, words
from foedus.base.files import Json
from foedus.base.quantities import count, number, size
from foedus.certificate.private import PrivateCertificate
from foedus.runtime.run import Run
from foedus.statistics.coefficients import CoefficientTable
from foedus.statistics.evaluate import blocks_of, figure_text, term_text
from foedus.statistics.figures import AT_THE_THRESHOLD, TITLES
from foedus.statistics.intervals import NOTHING, Figure

MOST = 200  # rows of the table; a longer one shows those with the least slack
# the characters that Markdown, or HTML inside it, would format
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


def plain(text: object) -> str:
    """Return the text as one line in which Markdown formats nothing."""
    return SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def card(name: str, run: Run, request: Json | None = None) -> str:
    """Return the model card of a run as Markdown; `request` is what `html.write` takes."""
    request = request or {}
    verdict, present = evidence.head(run), sections.presence(run)
    shape = run.settings.get("problem", {}).get("shape", [])
    settings = run.settings.get("algorithm", {})
    lines = [f"# Model card: {plain(request.get('title') or name)}", "", f"**{plain(verdict.title)}.**"]
    lines += [plain(sentence) for sentence in verdict.sentences]
    lines += ["", "## Problem", ""]
    if request.get("words"):
        lines.append(f"- In words: {plain(request['words'])}")
    lines.append(f"- Minimise: {plain(words.objective(run))}.")
    lines += [f"- Subject to: {plain(term)}." for term in words.terms(run)] or [f"- {words.NO_CONSTRAINTS}"]
    lines += ["", "## Training", ""]
    lines += [
        f"- Over {count(len(run.names), 'site')}, whose data stayed where they were"
        if settings.get("name") != "CentralProxAL"
        else f"- On the pooled data of {count(len(run.names), 'site')}, for comparison",
        f"- By {plain(settings.get('name', 'an unnamed method'))}: {plain(run.reason)}",
        f"- In {count(run.rounds, 'round')} of messages; {size(run.traffic.up)} came from the sites and "
        f"{size(run.traffic.down)} went to them",
        f"- Parameters: {' + '.join(' × '.join(map(str, s)) or '1' for s in shape) or 'of the shape of w0'}",
        f"- {words.not_measured(run)}"
        if run.certificate.silent
        else f"- Objective {number(run.objective)}, measured over all sites at the returned model",
    ]
    lines += ["", "## New rows", "", *_evidence(run)]
    if run.coefficients is not None:
        lines += ["", "## Coefficients", "", *_coefficients(run.coefficients)]
    lines += ["", "## Certificate", "", *_certificate(run)]
    if run.certificate.private is not None:
        lines += ["", "## Constraints under noise", "", *_caps(run.certificate.private, run)]
    ledger = getattr(run, "ledger", None)
    lines += ["", "## Privacy", ""]
    if ledger is None:
        lines.append(
            "No privacy mechanism was used. The messages were exact, and so is the model: who sees them may learn "
            "about single examples."
        )
    else:
        lines += ["```text", str(ledger).replace("```", "'''"), "```"]
    if stated := words.plan(run):
        lines += ["", "## The plan", "", *(f"- {name}: {plain(text)}" for name, text in stated)]
    lines += ["", "## Limits", "", *(f"- {plain(text)}" for text in limits(run))]
    remarks = [*words.warnings(run, None if present is None else present[1]), *map(str, request.get("warnings", ()))]
    lines += [f"- {plain(text)}" for text in remarks]
    versions = run.settings.get("versions", {})
    lines += ["", "## To repeat it", ""]
    lines += [sections.NO_SEED, ""] if sections.noise_from_seed(run) else []
    lines += ["```python", sections.call(run).replace("```", "'''"), "```", ""]
    lines.append("With " + ", ".join(f"{plain(k)} {plain(v)}" for k, v in versions.items()) + ".")
    return "\n".join(lines) + "\n"


def _evidence(run: Run) -> list[str]:
    """The threshold, where there is one, and the figures on new rows as tables; the card's head has them in words."""
    lines = [] if run.evaluations else [evidence.NOT_MEASURED]
    if run.decision is not None:
        lines += [
            *([""] if lines else []),
            f"A row is called positive from {words.threshold(run)} on, so that these hold:",
        ]
        lines += [f"- {plain(term.words)}" for term in run.decision.terms]
        lines += [f"- NOT satisfied: {plain(run.decision.trouble)}"] if run.decision.trouble else []
    for evaluation in run.evaluations.values():
        lines += ["", f"On {plain(evaluation.source)}, with intervals at 95 %:", ""]
        for names in blocks_of(evaluation.overall):
            lines += _figures("site", evaluation.everyone, names)
        if evaluation.groups:
            names = [name for name in AT_THE_THRESHOLD if name in evaluation.overall]
            lines += _figures("group", evaluation.groups, names)
        lines += [f"- {plain(t.constraint)} at {plain(t.site)}: {plain(term_text(t))}" for t in evaluation.terms]
    return lines


def _figures(first: str, figures: Mapping[str, Mapping[str, Figure]], names: Sequence[str]) -> list[str]:
    """The lines of a table of figures, and an empty line."""
    lines = [f"| {first} | rows | " + " | ".join(TITLES[name][0] for name in names) + " |"]
    lines += ["|---|---:|" + "---:|" * len(names)]
    for name, own in figures.items():
        rows = own.get("accuracy", own.get("loss", NOTHING)).rows
        lines.append(f"| {plain(name)} | {number(rows)} | " + " | ".join(figure_text(n, own[n]) for n in names) + " |")
    return [*lines, ""]


def _coefficients(table: CoefficientTable) -> list[str]:
    lines = [
        "| " + " | ".join(title or "column" for title in table.titles) + " |",
        "|---" + "|---:" * (len(table.titles) - 1) + "|",
    ]
    rows = table.rows[:MOST]
    lines += ["| " + " | ".join(plain(cell) for cell in table.cells(row)) + " |" for row in rows]
    fit = [] if table.figures is None else [f"{table.figures}."]
    return [*lines, "", *map(plain, [*fit, *table.notes])]


def _certificate(run: Run) -> list[str]:
    c = run.certificate
    if c.silent:
        return [words.not_measured(run)]
    counts = [plain(sentence) for sentence in words.counts_of_constraints(run)]
    gap = [plain(text) for part in words.optimality(run) for text in part]
    if counts and not c.rows:
        return [*counts, *gap]
    if not c.rows:
        return [
            *(f"{line}\n" for line in gap),
            *([f"{words.NO_CONSTRAINTS}\n"] if run.decision is None else []),
            f"Stationarity, the largest entry of the gradient at the returned model: {number(c.stationarity)}.",
        ]
    residuals = (
        ("stationarity", c.stationarity, c.eps1, "how far the model is from optimal; 0 is exact"),
        ("feasibility", c.feasibility, c.eps2, "the largest violation of a constraint"),
        ("complementarity", c.complementarity, c.eps2, "0 if only binding constraints have a price"),
        ("distance", c.distance, c.eps2, "0 if constraints and prices fit together"),
    )
    lines = [
        "Measured after training, at the returned model and over all sites, by code that the training has no part in.",
        *counts,
        "",
        *(f"{line}\n" for line in gap),
        "| residual | measured | tolerance | what it is |",
        "|---|---:|---:|---|",
        *(f"| {name} | {number(value)} | {number(eps)} | {what} |" for name, value, eps, what in residuals),
        "",
        "| site | constraint | value | cap | slack | multiplier | verdict |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    rows = sorted(c.rows, key=lambda row: row.slack)[:MOST] if len(c.rows) > MOST else c.rows
    lines += [
        f"| {plain(r.site)} | {plain(r.constraint)} | {number(r.value)} | {'= ' if r.kind == '==' else ''}"
        f"{number(r.cap)} | {number(r.slack)} | {number(r.multiplier)} | {r.verdict(c.eps2)} |"
        for r in rows
    ]
    if len(c.rows) > MOST:
        lines += ["", f"Of {number(len(c.rows))} rows these are the {MOST} with the least slack."]
    return lines


def _caps(certificate: PrivateCertificate, run: Run) -> list[str]:
    rows = certificate.rows
    rows = sorted(rows, key=lambda row: -row.high)[:MOST] if len(rows) > MOST else rows
    lines = [*map(plain, words.caps_under_noise(run)), "", sections.EXCESS, ""]
    lines += ["| site | constraint | value about | interval | cap | excess | interval | noise | verdict |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|---:|---|"]
    lines += [
        f"| {plain(r.site)} | {plain(r.constraint)} | {_figure(r.value)} | {sites.span(r.value_low, r.value_high)} | "
        f"{number(r.cap)} | {number(r.excess)} | {sites.span(r.low, r.high)} | {number(r.noise)} | "
        f"{certificate.verdict(r)} |"
        for r in rows
    ]
    if len(certificate.rows) > MOST:
        lines += ["", f"Of {number(len(certificate.rows))} caps these are the {MOST} with the largest excess."]
    return lines


def _figure(value: float) -> str:
    return number(value) if math.isfinite(value) else "–"


def limits(run: Run) -> list[str]:
    """Return sentences on what the certificate does not say."""
    limitations = [
        "The certificate is about the examples that the model was trained on, and the figures on new rows are about "
        "rows like those that were kept out; elsewhere, or later, it may do worse."
        if run.evaluations
        else "The figures are about the examples that the model was trained on. How it does on new ones has to be "
        "measured on examples that were kept out."
    ]
    if run.certificate.rows or run.certificate.counts:
        limitations.append(
            f"A constraint counts as satisfied up to {number(run.certificate.eps2)}, and the conditions of optimality "
            "are of the first order: for a convex problem they make the model the best there is, up to the tolerance; "
            "otherwise there may be a better one elsewhere."
        )
        limitations.append("A cap on a mean loss says nothing about a single case.")
    elif run.decision is not None:
        limitations.append("The bound on the rate is about future rows like those that the threshold was chosen on.")
    else:
        limitations.append("No promise is made about any single site.")
    limitations.append("Each site counts the same in the objective, however many examples it has.")
    return limitations
