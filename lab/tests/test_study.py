"""The study: its references against other solvers, its record against `solve`, its statistics against closed forms."""

import csv
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import foedus as fd
from foedus.algorithms.auto import choose
from foedus.app import cli
from foedus.protocol.participation import Fraction
from foedus.runtime.spine import prepare
from foedus_lab.study import grid, growth, growth_page, methods, page, reference
from foedus_lab.study.forecast import Forecast
from foedus_lab.study.instances import CAP, PROBLEMS, RIDGE, logistic_instance, worst_mean
from foedus_lab.study.networks import NETWORKS, Network
from foedus_lab.study.play import Trace, trace
from foedus_lab.study.profiles import confidence, profiles, summary, winner
from foedus_lab.study.rows import Results, to_csv
from foedus_lab.study.tables import SOURCES, Sample, split_by_label


def row(algorithm, seed=0, problem="logistic", data="generated-alike", settings="default", **figures):
    """A row as the grid writes it, with the same figure in every column that is not stated."""
    base = {"problem": problem, "data": data, "algorithm": algorithm, "settings": settings, "seed": seed}
    base |= {"status": "measured", "why": "", "sites": 10, "columns": 21, "with": {}, "gap_end": 0.1}
    base |= {"measuring_seconds": 1.0, "compile_seconds": 0.5, "rounds_played": 50}
    columns = ("rounds", "bytes_up", "bytes_down", "gradients", "seconds", "data-centre", "hospitals", "phones")
    return base | {f"{c}_{a}": 7.0 for c in columns for a in ("1e-2", "1e-4", "1e-6", "1e-8")} | figures


# --- references ---


def test_the_pooled_newton_is_scikit_learns_optimum():
    instance = PROBLEMS["logistic"].build("breast-cancer", 0, True)
    sample = SOURCES["breast-cancer"].sample(0, True)
    model = LogisticRegression(C=1.0 / (RIDGE * len(sample.y)), fit_intercept=False, tol=1e-12, max_iter=10_000)
    w = model.fit(sample.X, sample.y).coef_[0]
    assert np.max(np.abs(w - instance.best.w)) < 1e-5
    assert instance.best.value <= instance.judge(w[None])[0][0] + 1e-15


def test_the_reference_under_caps_is_the_optimum_of_cvxpy():
    import cvxpy as cp

    instance = PROBLEMS["neyman-pearson"].build("breast-cancer", 0, True)
    sample = SOURCES["breast-cancer"].sample(0, True)
    w, parts, caps = cp.Variable(sample.X.shape[1]), [], []
    for X, y in sample.clients().values():
        parts.append(cp.sum(cp.logistic(X[y == 0] @ w)) / np.sum(y == 0))
        caps.append(cp.sum(cp.logistic(-X[y == 1] @ w)) / np.sum(y == 1) <= CAP)
    program = cp.Problem(cp.Minimize(sum(parts) / len(parts) + 0.5 * RIDGE * cp.sum_squares(w)), caps)
    program.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert instance.best.value == pytest.approx(program.value, rel=1e-7)
    objective, violation = instance.judge(np.asarray(w.value)[None])
    assert objective[0] == pytest.approx(program.value, rel=1e-6)
    assert violation[0] < 1e-6


def test_with_more_columns_than_rows_the_reference_has_no_slope():
    draw = np.random.default_rng(0)
    X, y = draw.standard_normal((12, 40)), (draw.random(12) < 0.5).astype(float)
    best = logistic_instance(Sample(X, y, 3, 4)).best
    slope = X.T @ (1.0 / (1.0 + np.exp(-X @ best.w)) - y) / 12 + RIDGE * best.w
    assert np.max(np.abs(slope)) < 1e-12


def test_a_reference_that_is_not_optimal_is_refused():
    class Empty:  # rows that no w meets
        def value(self, w):
            return np.array([1.0 + w @ w]), 2.0 * w[None]

        def hessian(self, w, mu):
            return 2.0 * mu[0] * np.eye(len(w))

    with pytest.raises(fd.FoedusError, match="optimality conditions"):
        reference.minimum_under(lambda w: (0.5 * w @ w, w, np.eye(2)), Empty(), 2)


@pytest.mark.parametrize("problem", ["least-squares", "logistic", "nonconvex-logistic", "neyman-pearson"])
def test_the_judge_measures_what_the_problem_states(problem):
    instance = PROBLEMS[problem].build(PROBLEMS[problem].quick[0], 1, True)
    w = np.random.default_rng(0).standard_normal(instance.problem.terms.dim)
    whole = jax.vmap(lambda d: instance.problem.terms.value(w, d))(instance.problem.data)
    assert instance.judge(w[None])[0][0] == pytest.approx(float(np.mean(whole)), rel=1e-12)


@given(st.lists(st.floats(0, 5), min_size=2, max_size=6), st.floats(0, 2))
def test_the_worst_weights_are_those_of_a_linear_program(values, theta):
    from scipy.optimize import linprog

    n = len(values)
    # q − 1/n = p − m with p, m ≥ 0
    goal = -np.concatenate([values, -np.array(values)])
    result = linprog(
        goal,
        A_ub=np.concatenate([np.ones((1, 2 * n)), np.hstack([-np.eye(n), np.eye(n)])]),
        b_ub=np.concatenate([[theta], np.full(n, 1.0 / n)]),
        A_eq=np.concatenate([np.ones(n), -np.ones(n)])[None],
        b_eq=[0.0],
    )
    assert worst_mean(np.array(values), theta) == pytest.approx(np.mean(values) - result.fun, abs=1e-7)


@given(st.integers(0, 100), st.floats(0.05, 10))
def test_a_skewed_split_deals_out_every_row_once_and_equal_sizes(seed, alpha):
    draw = np.random.default_rng(seed)
    y = (draw.random(60) < 0.3).astype(float)
    rows = split_by_label(y, draw.permutation(60), 5, 12, alpha, draw)
    assert sorted(rows) == list(range(60))


# --- the record of a run ---


def test_the_record_of_a_run_is_that_of_solve():
    problem = PROBLEMS["least-squares"].build("generated-alike", 0, True).problem
    algorithm = fd.FedAvg(k0=2, lr=0.05, tol=0.0)
    run = fd.solve(problem, algorithm, max_rounds=20)
    job = prepare(problem, algorithm, w0=np.zeros(21), seed=0, max_rounds=20, participation=Fraction())
    result = trace(job, lambda models: False, math.inf)
    assert result.rounds == 20
    assert np.allclose(result.models[-1], run.w, rtol=1e-12)
    assert sum(result.up[k] * n for k, n in zip(result.kinds, result.answers, strict=True)) == run.traffic.up
    assert sum(result.down[k] * n for k, n in zip(result.kinds, result.requests, strict=True)) == run.traffic.down
    assert result.gradients == (2.0,)  # k0 gradients, two reads of X each
    assert trace(job, lambda models: True, math.inf).rounds == 16  # ends after the first chunk
    assert trace(job, lambda models: False, 10.0).rounds == 16


def test_modelled_time_is_round_trips_and_bytes_and_a_sites_share_of_computing():
    ones = np.ones(2, dtype=int)
    result = Trace(
        np.zeros((2, 1)), np.array([0, 1]), ones, ones, np.array([1.0, 4.0]), (0, 100), (25, 150), (1.0, 1.0), 2, 0, 0
    )
    seconds = Network("n", "", round_trip=0.5, bits=1000.0).seconds(result)
    assert seconds == pytest.approx([0.5 + 0.2 + 0.5, 1.0 + 0.2 + 2.0 + 2.0])


def test_an_algorithm_runs_to_the_strictest_test_it_has():
    assert methods.make("logistic", "FedGiA", {}).tol == 0.0
    assert methods.make("logistic", "InteriorPoint", {}).eps1 == 1e-9
    assert methods.make("logistic", "FedEPM", {}).stop == "gradient"
    robust = methods.make("robust-hinge", "DRFL", {})
    assert (robust.method, robust.tol) == ("interior", 1e-10)
    assert methods.make("robust-hinge", "DRFL", {"method": "splitting"}).tol == 1e-10


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_stated_setting_can_be_made(problem):
    for name in methods.names():
        if methods.solves(problem, name):
            for kind in methods.KINDS:
                for settings in methods.settings_of(problem, name, kind):
                    methods.make(problem, name, settings)


# --- statistics ---


def test_a_performance_profile_counts_instances_within_a_factor_of_the_best():
    rows = [row("A", 0, rounds=0), row("B", 0), row("A", 1), row("B", 1)]
    for r, cost in zip(rows, (2.0, 6.0, 5.0, None), strict=True):
        r["rounds_1e-4"] = cost
    rows += [row("A", 2) | {"rounds_1e-4": None}]  # nobody solved it, so it is no instance
    first, second = profiles(rows, "rounds_1e-4")
    assert (first.algorithm, first.share(1.0)) == ("A", 1.0)
    assert [second.share(tau) for tau in (1.0, 2.9, 3.0, 100.0)] == [0.0, 0.0, 0.5, 0.5]


def test_the_interval_of_a_median_has_the_confidence_it_is_given_for():
    assert confidence(10, 1) == pytest.approx(1 - 2 * 11 / 1024)  # the second to the ninth of ten
    ten = summary([float(k) for k in range(10)])
    assert (ten.low, ten.median, ten.high) == (1.0, 4.5, 8.0)
    three = summary([3.0, None, 1.0])
    assert (three.median, three.low, three.high, three.arrivals) == (3.0, 1.0, math.inf, 2)
    assert summary([None, None, 1.0]).text() == "– (1/3)"


def test_the_winner_solves_the_most_and_then_costs_the_least():
    rows = [row("often", s, hospitals=0) | {"hospitals_1e-8": 9.0} for s in range(2)]
    rows += [row("seldom") | {"hospitals_1e-8": 1.0}, row("slow", 0), row("slow", 1)]
    rows[-2]["hospitals_1e-8"] = rows[-1]["hospitals_1e-8"] = 18.0
    best = winner(rows, "hospitals")
    assert best is not None
    assert (best.algorithm, best.runner_up, best.accuracy) == ("often", "slow", 1e-8)
    assert best.factor == pytest.approx(2.0)


def published_rows():
    """The rows of the table that the documentation shows, with numbers as numbers."""
    with (Path(__file__).parents[2] / "docs" / "study" / "quick.csv").open() as file:
        for line in csv.DictReader(file):
            yield {k: float(v) if "_1e" in k and v else v or None for k, v in line.items()}


def test_the_automatic_choice_is_the_winner_of_the_published_table_on_every_network():
    rows = [r for r in published_rows() if r["status"] == "measured" and r["settings"] == "default"]
    for problem, data in (
        ("least-squares", "generated-alike"),
        ("logistic", "breast-cancer"),
        ("nonconvex-logistic", "breast-cancer"),
        ("neyman-pearson", "breast-cancer"),
        ("quadratic-programs", "paper-25"),
    ):
        instance = PROBLEMS[problem].build(data, 0, True)
        choice, _ = choose(instance.problem.over(methods.start(instance.problem)))
        for network in NETWORKS:
            best = winner([r for r in rows if r["problem"] == problem], network.name)
            assert best is not None
            assert best.algorithm == type(choice).__name__, (problem, network.name)


@given(st.floats(-3, 3), st.floats(-2, 2))
def test_a_power_law_is_fitted_exactly(log_factor, exponent):
    points = [(x, math.exp(log_factor) * x**exponent) for x in (1.0, 10.0, 50.0)]
    fit = growth_page.fit_power(points)
    assert fit is not None
    assert fit.exponent == pytest.approx(exponent, abs=1e-9)
    assert fit.margin < 1e-6
    assert growth_page.fit_power(points[:1]) is None


def growth_row(law, value, algorithm, seconds=1e-3, rounds=5, size=8):
    columns = {f"rounds_{a}": rounds for a in ("1e-2", "1e-4", "1e-6", "1e-8")}
    costs = {"bytes_up_a_round": size, "bytes_down_a_round": size, "rounds_played": 9, "why": ""}
    return {"law": law, "value": value, "algorithm": algorithm, "seconds_a_round": seconds} | costs | columns


def test_the_cache_ends_where_a_number_begins_to_cost_more():
    # 20 columns: 1e-9 s a number up to 1e5 rows, 3e-9 beyond
    rows = [growth_row("rows", v, "FedGiA", 20 * v * (1e-9 if v < 3e5 else 3e-9)) for v in (1e3, 1e4, 1e5, 1e6, 1e7)]
    text = "\n".join(growth_page.growth_section(rows)[0])
    assert "leaves the cache between 16 MB and 160 MB" in text
    flat = [growth_row("rows", v, "FedGiA", 20 * v * 1e-9) for v in (1e3, 1e4, 1e5)]
    assert "cannot be seen" in "\n".join(growth_page.growth_section(flat)[0])


def test_a_dense_message_stops_paying_where_its_bytes_are_more():
    rows = []
    for d in (10, 100, 1000):
        rows += [growth_row("columns", d, growth_page.DENSE, rounds=5, size=4 * d * d)]
        rows += [growth_row("columns", d, "FedGiA", rounds=100, size=8 * d)]
    text = "\n".join(growth_page.growth_section(rows)[0])
    # 5·8·d² against 100·16·d bytes: more from d = 40 on; with 50 ms round trips and 100 Mbit/s: 5·(0.05 + 6.4e-7·d²)
    # against 100·(0.05 + 1.28e-6·d): less still at d = 1000 (3.5 s against 5.1 s)
    assert "in bytes: from 100 columns on" in text
    assert "in time over hospitals: nowhere up to 1,000 columns" in text


@pytest.mark.parametrize("rows", [1, 30, 300])
def test_the_reference_under_many_linear_rows_meets_all_of_them_and_no_point_beats_it(rows):
    instance = growth.instance_of(growth.Size(sites=2, rows=20, columns=5, constraints=rows))
    assert instance.judge(instance.best.w[None])[1][0] <= 1e-9
    w, value = instance.best.w, instance.best.value
    near = w + 1e-3 * np.random.default_rng(0).standard_normal((2000, 5))
    objective, violation = instance.judge(near)
    assert np.any(violation <= 0)
    assert np.min(objective[violation <= 0]) >= value


def test_a_growth_point_has_rounds_bytes_and_memory_and_real_sites_need_flare(monkeypatch):
    figures = growth.figures(growth.Size(sites=3, rows=10, columns=4), "FedGiA")
    assert figures["data_bytes_a_site"] >= 8 * 10 * 5
    assert figures["rounds_1e-8"] > figures["rounds_1e-2"]
    assert figures["seconds_a_round"] > 0
    assert figures["bytes_up_a_round"] >= 8 * 4
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(fd.FoedusError, match="FLARE"):
        growth.real_figures(3)


def timed(algorithm, seconds, compiling=0.0, played=50, hit=50.0, **more):
    times = {"measuring_seconds": seconds, "compile_seconds": compiling, "rounds_played": played, "rounds_1e-8": hit}
    return row(algorithm, **more) | times


def test_the_full_grids_time_grows_with_its_data_and_with_the_limit_of_runs_on_their_way():
    # diabetes has the same size in both grids, generated-alike ten times as many numbers in the full one
    rows = [timed("FedAvg", 3.0, 1.0, problem="least-squares", data=d) for d in ("diabetes", "generated-alike")]
    rows += [timed("FedGiA", 2.0, 0.0, 1000, None, problem="least-squares", data="diabetes")]
    made = Forecast(rows)
    cell = lambda name, data, seed=1: grid.Cell("least-squares", data, name, "default", seed)  # noqa: E731
    assert made.seconds(cell("FedAvg", "diabetes")) == pytest.approx(2.0)
    assert made.seconds(cell("FedAvg", "diabetes", seed=0)) == pytest.approx(3.0)  # compiled once
    assert made.seconds(cell("FedAvg", "generated-alike")) == pytest.approx(20.0)
    assert made.seconds(cell("FedGiA", "diabetes")) == pytest.approx(20.0)  # ten times the rounds
    assert made.seconds(cell("FedDyn", "diabetes")) is None
    full = [timed("FedAvg", 1.0, problem="least-squares", data="diabetes", seed=1)]
    assert made.checks(full) == [pytest.approx(0.5)]
    assert "took 0.5 times what was computed" in made.sentence(full)
    assert "not measured" in made.sentence([])


# --- the command ---


def test_wrong_names_list_the_names(capsys, tmp_path):
    for only, words in {
        "logistik": "logistic",
        "logistic/w9a": "w8a",
        "logistic/w8a/FedGia": "FedGiA",
        "logistic/w8a/FedGiA/best": "default, published, tuned",
        "logistic/w8a/FedGiA/default/99": "0, 1, 2",
        "logistic/heart": "breast-cancer",
        "robust-hinge/heart/FedGiA": "worst case",
        "fairness/adult/FedGiA/published": "no published settings",
        "a/b/c/d/e/f": "at most 5 parts",
    }.items():
        assert cli.run(["study", "--quick", "--only", only, "--out", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err
    assert cli.run(["study", "--quick", "--algorithm", "FedGiA", "--out", str(tmp_path)]) == 2
    assert "module:Class" in capsys.readouterr().err
    assert cli.run(["study", "--quick", "--write", "--out", str(tmp_path), "--docs", str(tmp_path)]) == 2
    assert "no results" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_users_algorithm_takes_part_and_its_row_can_be_measured_again(tmp_path, monkeypatch):
    name = "own_algorithm:Descent"
    monkeypatch.syspath_prepend("tests")
    only = f"least-squares/generated-alike/{name}/default/0"
    command = ["study", "--quick", "--algorithm", name, "--only", only, "--out", str(tmp_path)]
    assert cli.run(command) == 0
    (line,) = (tmp_path / "quick.jsonl").read_text().splitlines()
    figures = json.loads(line)
    assert figures["status"] == "measured"
    assert figures["rounds_1e-8"] > figures["rounds_1e-2"] >= 1
    assert figures["bytes_up_1e-8"] == figures["rounds_1e-8"] * 10 * 21 * 8  # a gradient from each of ten sites
    assert figures["gradients_1e-8"] == figures["rounds_1e-8"]
    assert figures["phones_1e-2"] > figures["hospitals_1e-2"] > figures["data-centre_1e-2"]
    assert figures["phones_1e-8"] is None  # the mean over those who answered has another optimum each round
    # measured again alone, it is the same row; without --only, a row that is there is passed over
    assert cli.run(command) == 0
    again = json.loads((tmp_path / "quick.jsonl").read_text())
    assert all(again[k] == v for k, v in figures.items() if "seconds" not in k and "_1e" not in k)
    assert again["rounds_1e-8"] == figures["rounds_1e-8"]
    study = grid.Study(grid.QUICK, Results(tmp_path / "quick.jsonl"), print)
    monkeypatch.setattr(study, "measure", lambda cell: pytest.fail("it was measured again"))
    study.run(grid.select(only, grid.QUICK, (name,)), False, lambda words: None)


def test_missing_data_gets_a_line_and_not_a_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FOEDUS_DATA", str(tmp_path / "nowhere"))
    only = "robust-huber/abalone/DRFL/default/0"
    assert cli.run(["study", "--quick", "--only", only, "--out", str(tmp_path)]) == 0
    (line,) = (tmp_path / "quick.jsonl").read_text().splitlines()
    assert json.loads(line)["status"] == "left out"
    assert "abalone.data" in json.loads(line)["why"]
    assert "FOEDUS_DATA" in capsys.readouterr().out


def test_a_results_file_that_is_not_one_is_refused(tmp_path):
    (tmp_path / "quick.jsonl").write_text('{"problem": "logistic"}\n')
    with pytest.raises(fd.FoedusError, match="line 1"):
        Results(tmp_path / "quick.jsonl")


def test_a_torn_last_row_is_measured_again_and_all_others_stay(tmp_path):
    path = tmp_path / "quick.jsonl"
    results = Results(path)
    for seed in range(3):
        results.add(row("FedGiA", seed))
    path.write_bytes(path.read_bytes()[:-20])
    again = Results(path)
    assert [key[-1] for key in again.rows] == [0, 1]
    again.add(row("FedGiA", 2))
    again.add(row("FedGiA", 0) | {"why": "anew"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["seed"], line["why"]) for line in lines] == [(0, "anew"), (1, ""), (2, "")]


def test_a_run_ends_where_it_stands_still_and_goes_on_while_it_falls():
    class Line:  # the gap of a model is its first entry
        def gap(self, models):
            return models[:, 0]

    def stretches(values):
        verdict = grid.Verdict(Line())
        return [verdict(np.full((256, 1), value)) for value in values]

    assert stretches([1.0, 0.9, 0.89, 1e-9]) == [False, False, False, True]
    assert stretches([1.0, 0.995]) == [False, True]
    assert stretches([np.inf])[0]
    verdict = grid.Verdict(Line())
    assert not verdict(np.full((16, 1), 1.0))
    assert not verdict(np.full((100, 1), 1.0)), "a short stretch says nothing"


# --- the page ---


def test_the_page_has_winners_pictures_and_what_was_left_out_and_keeps_the_conclusions(tmp_path):
    rows = [row("FedGiA", s) | {"hospitals_1e-8": 3.0, "rounds_1e-4": 2.0 + s} for s in range(3)]
    rows += [row("FedAvg", s) for s in range(3)]
    rows += [row("FedAvg", 0, settings="tuned") | {"with": {"k0": 1}}]
    rows += [row("FedGiA", 0, "fairness") | {"status": "left out", "why": "it takes no constraints"}]
    rows += [row("FedAvg", 0, "private-1", "adult-large")]
    hits = {f"rounds_{a}": 5 for a in ("1e-2", "1e-4", "1e-6", "1e-8")}
    costs = {"why": "", "bytes_up_a_round": 8, "bytes_down_a_round": 8, "rounds_played": 9} | hits
    laws = [
        {"law": "sites", "value": v, "algorithm": "FedGiA", "seconds_a_round": v / 10} | costs for v in (3.0, 30.0, 3e4)
    ]
    laws += [{"law": "real sites", "value": 30.0, "algorithm": "LocalSGD", "seconds_a_round": 0.06} | costs]
    laws += [{"law": "columns", "value": 1e4, "algorithm": "FedGiA", "why": "no memory"}]
    page.write_page(rows, laws, grid.QUICK, tmp_path)
    text = (tmp_path / "study.md").read_text()
    assert "| logistic | 1e-8 |" in text
    assert "**FedGiA** (3 s; FedAvg 2.3 x)" in text
    assert "3 [2, 4]" in text
    assert "k0 = 1" in text
    assert "it takes no constraints" in text
    assert "1.00 ± 0.00" in text
    assert "computed and not measured" in text
    assert "| FedGiA | 5 | 80 kB | 20 s | 1.7 min |" in text  # 2 ms a site, 10,000 of them, five times
    assert "Left out: columns = 10000, FedGiA: no memory" in text
    (tmp_path / "study.md").write_text(text.replace(page.NO_CONCLUSIONS, "Use what wins."))
    page.write_page(rows, laws, grid.QUICK, tmp_path)
    assert "Use what wins." in (tmp_path / "study.md").read_text()
    for picture in (tmp_path / "study").glob("*.svg"):
        content = picture.read_text()
        ElementTree.fromstring(content)
        assert "prefers-color-scheme: dark" in content
        assert picture.name in text
    assert len((tmp_path / "study" / "quick.csv").read_text().splitlines()) == len(rows) + 1


def test_a_table_has_a_column_for_every_field():
    assert (
        to_csv([{"a": 1, "with": {"k0": 2}}, {"a": 0.123456789, "b": None}])
        == b'a,with,b\n1,"{""k0"": 2}",\n0.12346,,\n'
    )
