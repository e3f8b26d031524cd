"""The model card: a page of Markdown that describes a model, its certificate and its limits, to pass on with it."""

import math
import re

from foedus.app.report import evidence, sections, sites, words
from foedus.app.report.words import number, size
from foedus.base.files import Json
from foedus.certificate.private import PrivateCertificate
from foedus.runtime.run import Run
from foedus.statistics.coefficients import CoefficientTable
from foedus.statistics.evaluate import figure_text, term_text
from foedus.statistics.figures import TITLES

MOST = 200  # rows of the table; a longer one shows those with the least slack
# the characters that Markdown, or HTML inside it, would format
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


def plain(text: object) -> str:
    """Return the text as one line in which Markdown formats nothing."""
    return SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def card(name: str, run: Run, request: Json | None = None) -> str:
    """Return the model card of a run as Markdown; `request` is what `html.write` takes."""
    request = request or {}
    verdict, present = words.verdict(run), sections.presence(run)
    shape = run.settings.get("problem", {}).get("shape", [])
    settings = run.settings.get("algorithm", {})
    lines = [f"# Model card: {plain(request.get('title') or name)}", "", f"**{plain(verdict.title)}.**"]
    lines += [plain(sentence) for sentence in verdict.sentences]
    lines += ["", "## What the model was asked to do", ""]
    if request.get("words"):
        lines.append(f"- In words: {plain(request['words'])}")
    lines.append(f"- Make small: {plain(words.objective(run))}.")
    lines += [f"- Keep: {plain(term)}." for term in words.terms(run)] or ["- No terms were set."]
    lines += ["", "## How it was trained", ""]
    lines += [
        f"- Over {words.count(len(run.names), 'site')}, whose data stayed where they were"
        if settings.get("name") != "CentralProxAL"
        else f"- On the pooled data of {words.count(len(run.names), 'site')}, for comparison",
        f"- By {plain(settings.get('name', 'an unnamed method'))}: {plain(run.reason)}",
        f"- In {words.count(run.rounds, 'round')} of messages; {size(run.traffic.up)} came from the sites and "
        f"{size(run.traffic.down)} went to them",
        f"- Parameters: {' + '.join(' × '.join(map(str, s)) or '1' for s in shape) or 'of the shape of w0'}",
        f"- {words.not_measured(run)}"
        if run.certificate.silent
        else f"- Objective {number(run.objective)}, measured over all sites at the returned model",
    ]
    lines += ["", "## How good it is on rows it has not seen", "", *_evidence(run)]
    if run.coefficients is not None:
        lines += ["", "## What the model is", "", *_coefficients(run.coefficients)]
    lines += ["", "## The certificate", "", *_certificate(run)]
    if run.certificate.private is not None:
        lines += ["", "## The caps, as measured under noise", "", *_caps(run.certificate.private, run)]
    ledger = getattr(run, "ledger", None)
    lines += ["", "## Privacy", ""]
    if ledger is None:
        lines.append(
            "No privacy mechanism was used. The messages were exact, and so is the model: who sees them may learn "
            "about single examples."
        )
    else:
        lines += ["```text", str(ledger).replace("```", "'''"), "```"]
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
    """The figures on new rows as sentences and as a table, and the threshold where there is one."""
    lines = [plain(sentence) for sentence in evidence.sentences(run)]
    if run.decision is not None:
        lines += ["", f"A row is called positive from the score {number(run.decision.cut)} on, so that these are kept:"]
        lines += [f"- {plain(term.words)}" for term in run.decision.terms]
        lines += [f"- NOT kept: {plain(run.decision.trouble)}"] if run.decision.trouble else []
    for evaluation in run.evaluations.values():
        names = [name for name in TITLES if name in evaluation.overall]
        lines += ["", f"On {plain(evaluation.source)}, with intervals at 95 %:", ""]
        lines += ["| site | rows | " + " | ".join(TITLES[name][0] for name in names) + " |"]
        lines += ["|---|---:|" + "---:|" * len(names)]
        for site, figures in evaluation.everyone.items():
            cells = " | ".join(figure_text(name, figures[name]) for name in names)
            lines.append(f"| {plain(site)} | {number(figures['loss'].rows)} | {cells} |")
        lines += [""] if evaluation.terms else []
        lines += [f"- {plain(t.constraint)} at {plain(t.site)}: {plain(term_text(t))}" for t in evaluation.terms]
    return lines


def _coefficients(table: CoefficientTable) -> list[str]:
    lines = [
        "| " + " | ".join(title or "column" for title in table.titles) + " |",
        "|---" + "|---:" * (len(table.titles) - 1) + "|",
    ]
    rows = table.rows[:MOST]
    lines += ["| " + " | ".join(plain(cell) for cell in table.cells(row)) + " |" for row in rows]
    return [*lines, "", *map(plain, table.notes)]


def _certificate(run: Run) -> list[str]:
    c = run.certificate
    if c.silent:
        return [words.not_measured(run)]
    counts = [plain(sentence) for sentence in words.counts_of_terms(run)]
    if counts and not c.rows:
        return [*counts, *map(plain, words.optimality(run))]
    if not c.rows:
        return [
            *(f"{line}\n" for line in words.optimality(run)),
            f"No terms were set. Stationarity, the largest entry of the gradient at the returned model: "
            f"{number(c.stationarity)}.",
        ]
    lines = [
        "Measured after training, at the returned model and over all sites, by code that the training has no part in.",
        *counts,
        "",
        *(f"{line}\n" for line in words.optimality(run)),
        "| | measured | counts as reached up to |",
        "|---|---:|---:|",
        f"| stationarity | {number(c.stationarity)} | {number(c.eps1)} |",
        f"| feasibility | {number(c.feasibility)} | {number(c.eps2)} |",
        f"| complementarity | {number(c.complementarity)} | {number(c.eps2)} |",
        f"| distance | {number(c.distance)} | {number(c.eps2)} |",
        "",
        "| site | term | value | cap | slack | multiplier | verdict |",
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
    lines += ["| site | term | value about | interval | cap | excess | interval | noise | verdict |"]
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
            f"A term counts as kept up to {number(run.certificate.eps2)}, and the conditions of optimality are of the "
            "first order: for a convex problem they make the model the best there is, up to the tolerance; otherwise "
            "there may be a better one elsewhere."
        )
        limitations.append("A cap on a mean loss says nothing about a single case.")
    else:
        limitations.append("No promise is made about any single site.")
    limitations.append("Each site counts the same in the objective, however many examples it has.")
    return limitations
