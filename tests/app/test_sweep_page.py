"""Runs that differ in their seeds alone are one setting: mean, deviation, a band, a line of the summary."""

import csv
import io
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
import runs
from page_reader import Reader

import foedus as fd
from foedus.app.experiment.compare import table
from foedus.app.report import charts, html, sections, sweep


@pytest.fixture(scope="module")
def swept() -> dict[str, fd.Run]:
    problem = fd.Problem(runs.sites(), loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1, per_example=False))
    some = fd.Fraction(0.6)
    return {
        f"FedAvg,seed={seed},lr={lr:g}": fd.solve(
            problem, fd.FedAvg(lr=lr), seed=seed, max_rounds=6 + seed, participation=some
        )
        for seed in (0, 1, 2)
        for lr in (0.5, 0.1)
    }


def objectives(swept: dict[str, fd.Run], lr: str) -> list[float]:
    return [run.objective for name, run in swept.items() if name.endswith(f"lr={lr}")]


def test_a_summary_has_a_line_for_each_setting_with_mean_and_deviation(swept):
    lines = list(csv.DictReader(io.StringIO(sweep.summary_csv(swept))))
    assert [line["setting"] for line in lines] == ["FedAvg, lr=0.5", "FedAvg, lr=0.1"]
    for line, lr in zip(lines, ("0.5", "0.1"), strict=True):
        own = objectives(swept, lr)
        assert float(line["objective_mean"]) == pytest.approx(statistics.fmean(own), rel=1e-12)
        assert float(line["objective_sd"]) == pytest.approx(statistics.stdev(own), rel=1e-9)
        assert (line["runs"], float(line["rounds_mean"]), float(line["rounds_sd"])) == ("3", 7.0, 1.0)
    printed = table(swept)
    assert len(re.findall("^FedAvg", printed, re.MULTILINE)) == 2
    assert "7.0 ± 1.0" in printed


def test_a_curve_is_the_mean_in_a_band_and_a_run_that_ended_keeps_its_last_value(swept):
    (chart,) = (c for c in sweep.curves(sections.charts_of(swept, False), swept) if c.key == "objective")
    histories = [run.history["objective"] for name, run in swept.items() if name.endswith("lr=0.5")]
    longest = max(map(len, histories))
    whole = np.array([np.append(h, np.full(longest - len(h), h[-1])) for h in histories])
    line = chart.series[0]
    assert line.name == "FedAvg, lr=0.5"
    np.testing.assert_allclose(line.y, whole.mean(axis=0))
    assert line.band is not None
    np.testing.assert_allclose(line.band, [whole.min(axis=0), whole.max(axis=0)])
    drawn = charts.line_chart(chart, "rounds")
    assert [kind for kind, _, _ in drawn.lines].count("band c0") == 1
    assert sweep.HELD in chart.words


def test_a_page_has_a_line_for_each_setting_and_folds_the_runs(swept):
    text = html.page(swept, {"title": "sweep"})
    reader = Reader(text)
    assert reader.open == []
    assert "2 settings with 3 seeds each" in reader.text
    assert "0 of 6 runs reached their stopping test" in reader.text
    before, _, folded = text.partition("Each of the 6 runs")
    assert "seed=1" not in before.split("<body>")[1]
    assert folded.count("seed=1") > 1
    assert "Keep in mind" not in text, "that runs did not converge is said once"


def test_settings_of_one_seed_each_stay_single_runs(swept):
    one_seed = {name: run for name, run in swept.items() if "seed=0" in name}
    assert not sweep.has_repetitions(one_seed)
    other = {name: replace(run, settings=run.settings | {"algorithm": {"name": name}}) for name, run in swept.items()}
    assert not sweep.has_repetitions(other), (
        "runs of different algorithms are not repetitions, whatever they are called"
    )
