"""Caps that were measured under noise, on the report page and on the model card."""

import math
from dataclasses import replace

import pytest
import runs
from markupsafe import escape
from private_reports import BROKEN, KEPT, UNTOLD, measured

from foedus.app.report import card, html, words
from foedus.certificate.rows import RowCount


@pytest.mark.parametrize("silent", [True, False])
def test_page_and_card_show_every_cap_with_intervals_noise_verdict_epsilon_and_limit(silent):
    run = measured(KEPT, BROKEN, UNTOLD, silent=silent)
    page, text = html.page({"one": run}, {}), card.card("one", run)
    for figure in ("−0.0313 to −0.0113", "0.3717 to 0.4717", "0.0122 to 0.0322", "−0.0414 to 0.0014", "0.0051"):
        assert figure in page
        assert figure in text
    for verdict in ("kept (95 %)", "broken (95 %)", "cannot be told at this epsilon"):
        assert f" {verdict}</span>" in page
        assert f"| {verdict} |" in text
    assert "ε = 0.432 at δ = 1e-05" in page
    assert "ε = 0.432 at δ = 1e-05" in text
    assert "cut at L = 4.375" in page
    assert "cut at L = 4.375" in text
    assert runs.NASTY not in page
    assert escape(runs.NASTY) in page
    assert "nan" not in page.partition('id="caps"')[2].partition("</section>")[0].replace('data-v="nan"', "")


def test_the_title_says_what_the_noise_lets_one_say():
    titles = [words.verdict(measured(*rows)) for rows in ((KEPT,), (KEPT, UNTOLD), (KEPT, UNTOLD, BROKEN))]
    assert [(one.level, one.title.partition(",")[0]) for one in titles] == [
        ("fair", "Every cap is kept"),
        ("fair", "Some caps cannot be told"),
        ("bad", "A cap is broken"),
    ]
    assert "1 of 3 caps hold, 1 are violated, and of 1 it cannot be told" in titles[2].sentences[0]
    assert not titles[0].advice
    assert "Raise epsilon" in titles[1].advice[0]


def test_what_was_asked_names_the_caps_though_no_site_sent_an_exact_figure():
    assert words.terms(measured(KEPT, UNTOLD)) == [
        "loss on label 1 at most its own cap, from 0.5 to 0.6, at every site"
    ]
    assert words.terms(measured(KEPT, BROKEN)) == ["loss on label 1 at most 0.5, at every site"]


def test_a_run_without_such_a_measurement_has_no_such_section():
    run = runs.certified()
    assert 'id="caps"' not in html.page({"one": run}, {})
    assert "measured under noise" not in card.card("one", run)


@pytest.mark.parametrize(
    ("kept", "feasibility", "stationarity", "level"),
    [(3, 1e-3, 0.0, "good"), (2, math.inf, 0.0, "bad"), (3, 1e-3, 1.0, "fair")],
)
@pytest.mark.parametrize("with_rows", [False, True])
def test_terms_that_masked_sums_only_count_are_not_called_unset(kept, feasibility, stationarity, level, with_rows):
    exact = runs.certified().certificate
    count = RowCount("loss on label 1", "<=", kept, 3)
    changes = {"stationarity": stationarity, "feasibility": feasibility, "counts": (count,), "eps1": 1e-3, "eps2": 1e-3}
    rows = exact.rows[:1] if with_rows else ()
    run = replace(runs.certified(), certificate=replace(exact, rows=rows, complementarity=0.0, distance=0.0, **changes))
    assert words.verdict(run).level == level
    for text in (html.page({"one": run}, {}), card.card("one", run)):
        assert "No constraints were set" not in text
        assert "no constraints were set" not in text
        assert f"oss on label 1 holds at {kept} of 3 sites" in text
    both = html.page({"one": run, "two": run}, {})
    assert ("runs certified" in both) == (level == "good")
