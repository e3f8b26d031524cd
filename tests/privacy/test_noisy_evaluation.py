"""Evaluation under privacy: what replacing a row can move, what is spent, and intervals that include the noise."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from evaluated_rows import CAP, GAP, SITES, W, problem, rows
from hospitals import ACCEPT, Command, commands
from sklearn import metrics

import foedus as fd
from foedus.app.experiment.file import load
from foedus.app.report import evidence
from foedus.data import tables
from foedus.data.holdout import Shares, split
from foedus.data.sites import Roles
from foedus.privacy.beside_training import with_evaluation
from foedus.privacy.composition import tightest
from foedus.statistics import noisy, noisy_figures
from foedus.statistics.evaluate import Evaluation, evaluation_of, here
from foedus.statistics.noisy import LARGEST, EvaluationNoise
from foedus.statistics.noisy_figures import NoisyTally
from foedus.statistics.questions import NewRows
from foedus.statistics.tally import Rule
from foedus.sums.questions import Here

TERMS = problem(constraints=[CAP, GAP]).terms
GAUSS, LAPLACE = EvaluationNoise(1.0, 1e-5), EvaluationNoise(1.0)


def nothing(kind: str, value: np.ndarray, scale: float) -> np.ndarray:
    return value


def exact(X: np.ndarray, y: np.ndarray, group: np.ndarray) -> dict[str, np.ndarray]:
    return noisy.exact_parts(TERMS, W, (X, y, group), Rule())


def extreme_rows() -> list[tuple[np.ndarray, float, float]]:
    scores = (-1e6, -40.0, -3.0, 0.0, 1e-9, 2.0, 40.0, 1e6)
    return [(np.array([s, 0.0, 0.0]) / W[0], y, g) for s, y, g in itertools.product(scores, (0.0, 1.0), (0.0, 1.0))]


def test_replacing_one_row_moves_no_part_by_more_than_is_stated():
    X, y, group = rows(30, 5)
    base = [exact(np.vstack([X, x]), np.append(y, label), np.append(group, g)) for x, label, g in extreme_rows()]
    for part in noisy.parts_of(TERMS):
        moves = [(a[part.name] - b[part.name]).ravel() for a, b in itertools.combinations(base, 2)]
        ones, twos = (max(float(np.linalg.norm(m, order)) for m in moves) for order in (1, 2))
        assert ones <= part.change[0] + 1e-9, part.name
        assert twos <= part.change[1] + 1e-9, part.name
        assert ones > 0.99 * part.change[0], f"{part.name}: a smaller change would do"


@pytest.mark.parametrize("noise", [GAUSS, LAPLACE, EvaluationNoise(0.1, 1e-7)])
def test_all_parts_together_spend_what_was_asked_for(noise):
    counts = {}
    for _, change, scale in noise.releases(TERMS):
        counts[noise.kind, change / scale] = counts.get((noise.kind, change / scale), 0) + 1
    spent = tightest(counts, noise.delta)
    assert 0.999 * noise.epsilon < spent <= noise.epsilon * (1 + 1e-9)


@pytest.mark.parametrize("noise", [GAUSS, LAPLACE], ids=["gaussian", "laplace"])
def test_the_noise_has_the_scale_that_the_ledger_states(noise):
    zeros = {name: np.zeros(shape) for name, shape in noisy.shapes(TERMS).items()}
    draws = [noisy.release(TERMS, noise, zeros, noisy.drawing(noise, seed, "a")) for seed in range(300)]
    for name, scale in noise.scales(TERMS).items():
        values = np.concatenate([d[name].ravel() for d in draws])
        spread = scale if noise.kind == "gaussian" else np.sqrt(2) * scale
        assert np.std(values) == pytest.approx(spread, rel=0.25), name
    assert not np.array_equal(
        noisy.drawing(noise, 0, "a")("gaussian", np.zeros(9), 1.0),
        noisy.drawing(noise, 0, "b")("gaussian", np.zeros(9), 1.0),
    )


def test_without_noise_the_figures_are_those_of_scikit_learn():
    quiet = EvaluationNoise(1e9, 1e-5)
    result = evaluation_of(Here({s: NewRows(SITES[s], draw=nothing) for s in SITES}), TERMS, W, noise=quiet)
    X, y = (np.concatenate([part[i] for part in SITES.values()]) for i in (0, 1))
    score = X @ W
    p = 1 / (1 + np.exp(-score))
    (tn, fp), (fn, tp) = metrics.confusion_matrix(y, score > 0)
    losses = np.minimum(np.logaddexp(0, score) - y * score, LARGEST)
    oracle = {
        "accuracy": metrics.accuracy_score(y, score > 0), "miss_rate": fn / (fn + tp), "false_alarms": fp / (fp + tn),
        "brier": metrics.brier_score_loss(y, p), "calibration": np.mean(p) - np.mean(y), "loss": np.mean(losses),
    }  # fmt: skip
    for name, value in oracle.items():
        assert result[name].value == pytest.approx(value, abs=1e-7), name  # rows are rounded to 2^-24
        assert result[name].low < value < result[name].high
    assert abs(result["auc"].value - metrics.roc_auc_score(y, score)) <= result.auc_error < 0.04
    capped = {t.site: t.figure.value for t in result.terms if t.constraint == "loss on label 1"}
    a = SITES["a"][0] @ W
    own = np.minimum(np.logaddexp(0, a) - a, LARGEST)[SITES["a"][1] > 0]
    assert capped["a"] == pytest.approx(np.mean(own), abs=1e-6)
    assert [t.observed.rows for t in result.tenths] == [n for n in np.histogram(p, np.linspace(0, 1, 11))[0] if n]
    assert Evaluation.from_json(result.to_json()) == result


def test_noise_hides_a_single_row_and_shows_many():
    few = fd.evaluate(problem(), W, {"a": rows(20, 1)}, privacy=fd.Local(epsilon=0.5, delta=1e-6))
    assert not few["auc"].known
    many = fd.evaluate(problem(), W, {"a": rows(60000, 1)}, privacy=fd.Local(epsilon=0.5, delta=1e-6))
    plain = fd.evaluate(problem(), W, {"a": rows(60000, 1)})
    for name in ("accuracy", "miss_rate", "false_alarms", "brier", "auc"):
        assert many[name].low <= plain[name].value <= many[name].high
        assert many[name].value != plain[name].value
    assert "SIMULATED epsilon 0.5" in str(many)
    assert many != fd.evaluate(problem(), W, {"a": rows(60000, 1)}, privacy=fd.Local(epsilon=0.5, delta=1e-6), seed=1)


def test_a_mean_of_losses_is_measured_on_classes_alone():
    stated = fd.Problem({"a": rows(30, 1)[:2]}, loss=fd.losses.least_squares)
    with pytest.raises(fd.FoedusError, match="the errors of a predicted number have no bound"):
        fd.evaluate(stated, W, {"a": rows(30, 1)[:2]}, privacy=fd.Local(epsilon=1.0))


# coverage


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_interval_of_a_rate_covers_it_in_at_least_95_per_cent_of_1000_draws(kind):
    draw, rate, covered = np.random.default_rng(3), 0.12, 0
    for _ in range(1000):
        n, noise = draw.binomial(400, 0.5), draw.normal if kind == "gaussian" else draw.laplace
        wrong = draw.binomial(n, rate)
        counts = np.array([n - wrong, wrong, 0, 0]) + noise(scale=8.0, size=4)
        tally = NoisyTally({"outcomes": counts}, {"outcomes": 8.0}, kind)
        figure = noisy_figures._rate(tally, "outcomes", (1,), (0,))
        covered += figure.low <= rate <= figure.high
    assert covered >= 950
    # the same interval without the noise's part covers too rarely: the test can tell
    assert kind != "gaussian" or _covered_without_noise() < 900


def _covered_without_noise() -> int:
    draw, covered = np.random.default_rng(3), 0
    for _ in range(1000):
        n = draw.binomial(400, 0.5)
        wrong = draw.binomial(n, 0.12)
        counts = np.array([n - wrong, wrong, 0, 0]) + draw.normal(scale=8.0, size=4)
        figure = noisy_figures._rate(
            NoisyTally({"outcomes": counts}, {"outcomes": 1e-9}, "gaussian"), "outcomes", (1,), (0,)
        )
        covered += figure.low <= 0.12 <= figure.high
    return covered


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "n"), [(GAUSS, 300), (GAUSS, 3000), (LAPLACE, 1000), (EvaluationNoise(5.0, 1e-5), 150)]
)
def test_every_interval_covers_in_at_least_95_per_cent_of_1000_draws(noise, n):
    draw = np.random.default_rng(11)
    population = {"a": rows(400_000, 1), "b": rows(400_000, 2)}
    truths = {name: _truth([own]) for name, own in population.items()} | {"all rows": _truth(list(population.values()))}
    hits: dict[tuple[str, str], list[bool]] = {}
    for seed in range(1000):
        sites = {}
        for name, own in population.items():
            places = draw.integers(0, 400_000, n)
            sites[name] = tuple(part[places] for part in own)
        result = evaluation_of(here(sites, noise, seed), TERMS, W, noise=noise)
        for who, figures in result.everyone.items():
            for name, figure in figures.items():
                if figure.known:
                    hits.setdefault((who, name), []).append(figure.low <= truths[who][name] <= figure.high)
        for term in result.terms:
            if term.figure.known and term.constraint == "loss on label 1":
                value = truths[term.site]["loss on label 1"]
                hits.setdefault((term.site, "cap"), []).append(term.figure.low <= value <= term.figure.high)
    for key, seen in hits.items():
        assert len(seen) < 200 or np.mean(seen) >= 0.95, (key, np.mean(seen))
    assert sum(len(seen) >= 200 for seen in hits.values()) >= 21


def _truth(parts: list[tuple[np.ndarray, ...]]) -> dict[str, float]:
    X, y = (np.concatenate([own[i] for own in parts]) for i in (0, 1))
    score = X @ W
    p, losses = 1 / (1 + np.exp(-score)), np.minimum(np.logaddexp(0, score) - y * score, LARGEST)
    return {
        "accuracy": np.mean((score > 0) == (y > 0)), "miss_rate": np.mean(score[y > 0] <= 0),
        "false_alarms": np.mean(score[y <= 0] > 0), "auc": metrics.roc_auc_score(y, score), "loss": np.mean(losses),
        "brier": np.mean((p - y) ** 2), "calibration": np.mean(p - y), "loss on label 1": np.mean(losses[y > 0]),
    }  # fmt: skip


# through the commands

STUDY = """\
seed = 5
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
group = "sex"
[algorithm]
name = "FedAvg"
k0 = 1
[run]
max_rounds = 4
[privacy]
epsilon = 3.0
delta = 1e-5
[evaluate]
holdout = 0.3
"""
HELD, TOTAL = "holdout = 0.3", "[privacy]\nepsilon = 3.0\ndelta = 1e-5\n"


@pytest.fixture
def foedus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(STUDY, tmp_path, monkeypatch, capsys, columns=200)


def test_a_private_run_is_evaluated_with_noise_and_the_ledger_says_so(foedus: Command):
    done = foedus("run", "study.toml", ACCEPT)
    assert done.status == 0, done.err
    run = fd.load("runs/study")
    evaluation, ledger = run.evaluation, run.ledger
    assert evaluation is not None
    assert evaluation.noise == EvaluationNoise(3.0, 1e-5)
    assert ledger is not None
    for i, name in enumerate(run.names):
        own = [entry for entry in ledger.entries(name) if entry.released.startswith("evaluation")]
        assert [e.released for e in own] == [w for w, _, _ in evaluation.noise.releases(_terms_of("study.toml"))]
        assert 2.99 < ledger.evaluated(i) <= 3.0 * (1 + 1e-9)
        assert ledger.total(name, "tight") <= 3.0 * (1 + 1e-9)
        assert ledger.total(name, "basic") >= ledger.evaluated(i, "basic")
    assert "of the rows held out of training went to the evaluation" in done.out
    assert "a row is either trained on or held out" in str(ledger)
    assert any("SIMULATED epsilon 3" in sentence for sentence in evidence.sentences(run))
    assert "the intervals include it" in Path("runs/study/report.html").read_text()
    card = foedus("card", "runs/study")
    assert card.status == 0, card.err
    assert "the intervals include it" in card.out + "".join(p.read_text() for p in Path("runs/study").glob("card.md"))


def _terms_of(path: str):
    from foedus.app.experiment.execute import Builder

    experiment = load(Path(path))
    return Builder(experiment).build(experiment.cases[0]).problem.terms


def test_which_rows_are_held_out_does_not_depend_on_what_is_in_them(foedus: Command):
    roles = Roles(label="readmitted", positive="yes", group="sex")
    table = tables.read(Path("hospitals/city.csv"))
    label = table.columns["readmitted"]
    other = dataclasses.replace(label, codes=np.where(np.arange(table.rows) == 3, 1 - label.codes, label.codes))
    neighbour = dataclasses.replace(table, columns={**table.columns, "readmitted": other})

    def places(one, by_class):
        ages = split(one, roles, "city", Shares(0.3, 0.0, 5, by_class)).held_out.columns["age"]
        return np.asarray(ages)

    np.testing.assert_array_equal(places(table, False), places(neighbour, False))
    # the draw by class, which runs without privacy use, moves other rows too
    assert not np.array_equal(places(table, True), places(neighbour, True))


def test_a_ledger_that_adds_up_both_parts_would_exceed_the_total(foedus: Command):
    foedus("run", "study.toml", ACCEPT)
    ledger = fd.load("runs/study").ledger
    assert ledger is not None
    training = dataclasses.replace(ledger, after=()).total(0, "tight")
    assert training <= 3.0 * (1 + 1e-9)
    twice = with_evaluation(ledger, EvaluationNoise(6.0, 1e-5).releases(_terms_of("study.toml")), 1e-5)
    assert twice.total(0, "tight") > 5.9  # a dearer evaluation shows in the total


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (HELD, f"{HELD}\nepsilon = 4.0", "[evaluate] epsilon must be at most the epsilon of [privacy], 3"),
        (HELD, f"{HELD}\ndelta = 1e-3", "[evaluate] delta must be at most the delta of [privacy]"),
        (HELD, f"{HELD}\nepsilon = 0.0", "The 'epsilon' of Local must be a number > 0"),
        (HELD, "epsilon = 1.0", "[evaluate] epsilon goes with [privacy] and with holdout"),
        (TOTAL, '[privacy]\nnoise = "Laplace"\nepsilon = 1.0\nclip = 1.0\n', "[evaluate] epsilon is missing"),
        (f"{TOTAL}[evaluate]\n", "[evaluate]\nepsilon = 1.0\n", "[evaluate] epsilon goes with [privacy]"),
        ("[algorithm]", '[problem]\nloss = "least_squares"\n[algorithm]', "the errors of a predicted number have no"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_written(foedus: Command, old, new, sentence):
    Path("study.toml").write_text(STUDY.replace(old, new))
    refused = foedus("run", "study.toml", ACCEPT)
    assert refused.status == 2
    assert sentence in refused.err
    assert "Traceback" not in refused.err
    assert not Path("runs").exists()


def test_less_may_be_spent_than_the_total(foedus: Command):
    Path("study.toml").write_text(STUDY + "epsilon = 1.0\ndelta = 1e-6\n")
    assert foedus("run", "study.toml", ACCEPT).status == 0
    ledger = fd.load("runs/study").ledger
    assert ledger is not None
    assert ledger.evaluated(0, delta=1e-6) == pytest.approx(1.0, rel=1e-3)


def test_further_rows_are_measured_with_noise_that_the_ledger_lists(foedus: Command):
    pytest.importorskip("opendp")
    foedus("run", "study.toml", ACCEPT)
    before = fd.load("runs/study").ledger
    assert before is not None
    table = str(Path("hospitals/city.csv"))
    done = foedus("evaluate", "runs/study", table)
    assert done.status == 0, done.err
    run = fd.load("runs/study")
    assert run.ledger is not None
    assert run.evaluations["city.csv"].noise == EvaluationNoise(3.0, 1e-5, "opendp")
    assert run.ledger.total("city", "tight") == before.total("city", "tight")
    assert "figures about rows of city were released" in str(run.ledger)
    again = foedus("evaluate", "runs/study", table, "--epsilon", "0.5", "--delta", "0")
    assert again.status == 0
    assert "epsilon 0.5 of each of these rows" in again.out
    wrong = foedus("evaluate", "runs/study", table, "--epsilon", "-1")
    assert (wrong.status, "must be a number > 0" in wrong.err) == (2, True)
