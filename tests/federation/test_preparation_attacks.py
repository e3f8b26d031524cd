"""Attacks on a site while tables are prepared: columns, words, ranges and sums that a curious server asks for."""

import dataclasses

import numpy as np
import pytest
from clerks import PRIVATE, Clerk, noise

from foedus.federation.policy import Policy


@pytest.mark.parametrize("roles", [{"group": "name"}, {"group": "age"}, {"label": "name"}, {"label": "ward"}])
def test_a_column_that_the_site_does_not_list_is_neither_label_nor_group(tmp_path, roles):
    reply = Clerk(tmp_path).columns(**roles)
    assert reply["code"] == "policy"
    assert "does not list" in reply["sentence"]


def test_a_label_or_group_with_a_rare_value_is_not_told(tmp_path):
    clerk = Clerk(tmp_path, groups=("sex", "ward"))
    assert clerk.columns(group="sex")["code"] == "ok"
    reply = clerk.columns(group="ward")
    assert reply["code"] == "data"
    assert "isolation" not in str(reply)


def test_words_of_few_rows_stay_at_the_site_and_have_no_gradient_of_their_own(tmp_path):
    clerk = Clerk(tmp_path)
    assert clerk.columns()["code"] == "ok"
    assert clerk.sums(words=("ward",))["sums"]["words"] == {"ward": ["east", "west"]}
    levels = ["east", "isolation", "west"]
    rules = {
        "schema": 1,
        "columns": [
            *({"kind": "number", "name": name} for name in ("age", "dose")),
            {"kind": "category", "name": "ward", "levels": levels},
        ],
        "label": "ill",
        "labels": ["no", "yes"],
    }
    assert clerk.say("prepare", rules=rules)["code"] == "ok"
    assert clerk.site.arrays is not None
    np.testing.assert_array_equal(clerk.site.arrays["x"].sum(axis=0)[[2, 3, 4]] >= 20, [True, False, True])
    assert clerk.site.arrays["x"][:, 3].sum() == 0


def test_the_least_and_the_greatest_value_are_two_patients_and_are_not_told(tmp_path):
    clerk = Clerk(tmp_path)
    clerk.columns()
    reply = clerk.sums(ranges=("age",))
    assert reply["code"] == "policy"
    assert "single rows' values" in reply["sentence"]
    allowed = Clerk(tmp_path, Policy(ranges=True))
    allowed.columns()
    assert allowed.sums(ranges=("age",))["code"] == "ok"


def test_a_private_site_sends_no_exact_sum(tmp_path):
    clerk = Clerk(tmp_path, PRIVATE, noisy=True)
    assert clerk.columns()["code"] == "ok"
    for asked in ({"sums": ("age",)}, {"words": ("ward",)}, {"ranges": ("age",)}):
        assert clerk.sums(**asked)["code"] == "policy"
    assert clerk.say("squares", means={"age": 50.0}, noise=None)["code"] == "policy"


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (noise(1e9), "policy"),
        (noise(0.6, figures=1), "policy"),  # 2 figures with 0.6 each
        (noise(0.5, figures=0), "unknown"),
        (noise(-1.0), "unknown"),
        ({"bounds": {"age": [120.0, 0.0]}, "epsilon": 0.1, "figures": 6}, "unknown"),
        ({"bounds": {}, "epsilon": 0.1, "figures": 6}, "unknown"),
        (noise(0.5), "ok"),
    ],
)
def test_noise_on_sums_is_charged_figure_by_figure(tmp_path, told, code):
    clerk = Clerk(tmp_path, PRIVATE, noisy=True)
    assert clerk.columns()["code"] == "ok"
    assert clerk.sums(sums=("age",), noise=told)["code"] == code
    assert clerk.spent == pytest.approx(2 * 0.5 / 6 if code == "ok" else 0.0)


def test_one_kind_of_sum_asked_many_times_is_charged_each_time_it_differs(tmp_path):
    """3,000 answers for one ε would have shown the exact sum as their mean. At δ = 0 epsilons add up."""
    clerk = Clerk(tmp_path, dataclasses.replace(PRIVATE, max_delta=0.0), noisy=True)
    clerk.columns()
    first = [clerk.sums(sums=("age",), noise=noise(0.06)) for _ in range(50)]
    assert len({str(reply) for reply in first}) == 1, "the same request has the same answer"
    assert clerk.spent == pytest.approx(2 * 0.01)
    answered = 0
    for attempt in range(3000):
        reply = clerk.sums(sums=("age",), noise=noise(0.06) | {"attempt": attempt})
        if reply["code"] != "ok":
            break
        answered += 1
    assert answered == 49
    assert clerk.spent <= 1.0 + 1e-9


def test_squares_are_charged_and_a_far_mean_does_not_enlarge_them(tmp_path):
    clerk = Clerk(tmp_path, PRIVATE, noisy=True)
    clerk.columns()
    clerk.sums(sums=("age",), noise=noise(0.6))
    reply = clerk.say("squares", means={"age": 1e9}, noise=noise(0.6))
    assert reply["code"] == "ok"
    assert reply["squares"]["age"] < 1e7, "the mean is kept within the bounds"
    assert clerk.spent == pytest.approx(0.3)


def test_preparation_counts_against_the_total_of_the_rounds(tmp_path):
    clerk = Clerk(tmp_path, PRIVATE, noisy=True)
    clerk.columns()
    clerk.sums(sums=("age", "dose"), noise=noise(1.44))
    assert clerk.spent == pytest.approx(0.96)
    assert clerk.columns()["code"] == "ok", "four rounds of 0.01 still fit"
    clerk.sums(sums=("age",), noise=noise(1.44))
    assert clerk.columns()["code"] == "ok", "the same figures count once"
    more = Clerk(tmp_path, PRIVATE, noisy=True)
    more.columns()
    assert more.sums(sums=("age", "dose"), noise=noise(0.03))["code"] == "policy"


def test_what_prepares_a_run_has_one_noise(tmp_path):
    """A server that saw noisy sums could ask for others with less noise; what they cost together has no proof."""
    clerk = Clerk(tmp_path, PRIVATE, noisy=True)
    clerk.columns()
    assert clerk.sums(sums=("age",), noise=noise(0.06))["code"] == "ok"
    reply = clerk.sums(sums=("age",), noise=noise(0.03))
    assert (reply["code"], "other noise" in reply["sentence"]) == ("policy", True)
    assert clerk.columns(noise=noise(0.03))["code"] == "policy"
    stated = Clerk(tmp_path, PRIVATE, noisy=True)
    assert stated.say("sums", run="r1", columns={}, noise=None)["code"] == "other-run"
    assert clerk.spent == pytest.approx(0.02)


def test_sums_of_a_run_that_was_not_asked_for_its_columns_are_refused(tmp_path):
    clerk = Clerk(tmp_path)
    assert clerk.sums(sums=("age",))["code"] == "other-run"
    clerk.columns()
    assert clerk.say("sums", run="r2", columns={}, noise=None)["code"] == "other-run"
    assert clerk.sums(sums=("name",))["code"] == "unknown"
    assert clerk.sums(sums=("ill",))["code"] == "unknown"
