"""The experiment file: what it says is what is built, and lists make runs."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import foedus as fd
from foedus.app.experiment import build, catalogue, execute, file, sources, starter
from foedus.app.experiment import file as file_keys
from foedus.app.experiment.plan import Plan
from foedus.app.experiment.screen import Screen
from foedus.base.errors import FoedusError
from foedus.data import preprocess
from foedus.protocol.algorithm import Algorithm

DATA = """
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
group = "sex"
"""


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    (tmp_path / "hospitals").mkdir()
    for name, text in starter.hospitals().items():
        (tmp_path / f"hospitals/{name}.csv").write_text(text)
    return tmp_path


def read(folder: Path, text: str) -> file.Experiment:
    path = folder / "study.toml"
    path.write_text(text)
    return file.load(path)


def built(folder: Path, text: str) -> build.RunSetup:
    experiment = read(folder, text)
    (case,) = experiment.cases
    return build.build(case.settings, sources.cohort_of(case.settings, experiment.folder))


def test_every_algorithm_can_be_named_with_all_its_settings():
    exported = [getattr(fd, name) for name in fd.__all__ if not name.endswith("Classifier")]
    classes = [made for made in exported if isinstance(made, type) and issubclass(made, Algorithm)]
    offers = catalogue.algorithms()
    assert set(offers) == {made.__name__ for made in classes}
    for offer in offers.values():
        assert offer.build({}, "here") == offer.make()
        for parameter in offer.parameters.values():
            assert parameter.doc, f"{offer.name}.{parameter.name} says nothing about itself"


def test_what_can_be_written_in_a_file_is_offered():
    assert {"logistic", "least_squares", "huber"} <= set(catalogue.losses())
    assert {"LossCap", "LossGap", "NormBall"} <= set(catalogue.constraints())
    assert "Custom" not in catalogue.constraints()  # it takes a function
    assert {"Ridge", "Saturating"} <= set(catalogue.penalties())
    assert "BesideIntercept" not in catalogue.penalties()
    assert {"L1", "ElasticNet", "NonNegative", "Box"} <= set(catalogue.regularizers())
    assert catalogue.losses()["huber"].build({"eps": 2.0}, "here") == fd.losses.huber(2.0)


def test_names_are_understood_in_any_case():
    assert build.algorithm_of({"algorithm": {"name": "fedgia", "k0": 3}}) == fd.FedGiA(k0=3)  # no intercept to know of
    assert build.algorithm_of({"algorithm": {"name": "FedAvg", "stop": "none"}}) == fd.FedAvg(stop=None)


def test_an_algorithm_that_must_know_of_the_intercept_is_told():
    for told in (True, False):
        made = build.algorithm_of({"algorithm": {"name": "DRFL"}, "preprocess": {"intercept": told}})
        assert made == fd.DRFL(intercept=told)


def test_lists_make_all_combinations(hospitals: Path):
    text = f"""seed = [3, 4]
{DATA}
[problem]
penalty = {{ name = "Ridge", mu = [0.1, 0.2] }}
[[algorithm]]
name = "FedGiA"
k0 = [1, 5]
[[algorithm]]
name = "FedAvg"
"""
    cases = read(hospitals, text).cases
    assert len(cases) == 2 * 2 * (2 + 1)
    assert len({case.name for case in cases}) == 12
    assert "FedGiA,k0=5,seed=3,mu=0.2" in {case.name for case in cases}
    for case in cases:
        asked = case.settings
        assert f"seed={asked['seed']}" in case.name
        assert f"mu={asked['problem']['penalty']['mu']}" in case.name
    algorithms = {build.algorithm_of(case.settings) for case in cases}
    assert algorithms == {fd.FedGiA(k0=1), fd.FedGiA(k0=5), fd.FedAvg()}


def test_double_brackets_are_one_value(hospitals: Path):
    text = f"{DATA}\n[problem]\nregularizer = {{ name = 'Group', lam = 0.1, groups = [[0, 0, 1]] }}\n"
    (case,) = read(hospitals, text + "[algorithm]\nname = 'ProxAL'\n").cases
    held = build.regularizer_of(case.settings, 4)
    assert held == fd.regularizers.Leading(fd.regularizers.Group(0.1, (0, 0, 1)), 3)


def test_a_file_states_the_problem_that_python_would(hospitals: Path):
    made = built(
        hospitals,
        f"""{DATA}
[problem]
where = "label no"
penalty = {{ name = "Ridge", mu = 0.5, per_example = false }}
[[constraints]]
type = "LossCap"
where = "label yes"
at_most = 0.6
[[constraints]]
type = "LossGap"
first = "group F"
second = "group M"
at_most = 0.3
scope = "coupled"
[algorithm]
name = "ProxAL"
beta = 7
[participation]
fraction = 0.5
every = 4
""",
    )
    terms = made.problem.terms
    assert terms.where == fd.label(0)
    assert tuple(replace(c, key="") for c in terms.constraints) == (
        fd.constraints.LossCap(fd.label(1), at_most=0.6),
        fd.constraints.LossGap(fd.group(0), fd.group(1), at_most=0.3, scope="coupled"),
    )
    assert made.algorithm == fd.ProxAL(beta=7, inner="newton")
    assert made.participation == fd.Coverage(0.5, 0.0, 4)
    assert [str(mask) for c in terms.constraints for mask in c.masks()] == ["label yes", "group F", "group M"]
    assert made.problem.names == ["city", "lakeside", "st-mary", "valley"]
    w = jnp.arange(1.0, 11.0)
    assert terms.penalty is not None
    assert float(terms.penalty.value(w, jnp.array(5.0))) == pytest.approx(0.25 * np.sum(w[:-1] ** 2))  # no intercept


def test_the_whole_way_from_files_agrees_with_scikit_learn(tmp_path: Path):
    """Raw rows at four sites of 30: the same model as one scaler and one LogisticRegression on all 120 rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    draw = np.random.default_rng(0)
    X = draw.normal(size=(120, 3)) * [1.0, 20.0, 0.1] + [0.0, 100.0, 5.0]
    y = (X[:, 0] + (X[:, 1] - 100) / 20 + draw.normal(size=120) > 0.3).astype(int)
    lines = [f"h{i % 4},{a},{b},{c},{label}" for i, ((a, b, c), label) in enumerate(zip(X.tolist(), y, strict=True))]
    (tmp_path / "all.csv").write_text("site,a,b,c,y\n" + "\n".join(lines) + "\n")
    made = built(
        tmp_path,
        """
[data]
file = "all.csv"
site = "site"
label = "y"
[problem]
penalty = { name = "Ridge", mu = 0.1, per_example = false }
[algorithm]
name = "FedGiA"
tol = 1e-22
""",
    )
    run = fd.solve(made.problem, made.algorithm, max_rounds=3000)
    theirs = LogisticRegression(C=1 / (0.1 * 120), tol=1e-12, max_iter=1000)
    theirs.fit(StandardScaler().fit_transform(X), y)
    assert run.converged
    np.testing.assert_allclose(run.w[:3], theirs.coef_[0], atol=1e-6)
    assert run.w[3] == pytest.approx(theirs.intercept_[0], abs=1e-6)


def test_a_set_is_dealt_out(tmp_path: Path):
    text = """
[data]
set = "breast-cancer"
[partition]
method = "dirichlet"
num_partitions = 4
alpha = 5.0
[algorithm]
name = "FedAvg"
"""
    made = built(tmp_path, text)
    assert made.problem.terms.clients == 4
    assert sum(table.rows for table in made.cohort.tables.values()) == 569
    assert made.cohort.labels == ("benign", "malignant")


def test_the_servers_own_file_is_prepared_like_the_sites(hospitals: Path):
    (hospitals / "own.csv").write_text((hospitals / "hospitals/valley.csv").read_text())
    made = built(
        hospitals,
        DATA + 'server = "own.csv"\n[[constraints]]\ntype = "LossCap"\nwhere = "label yes"\nat_most = 0.6\n'
        'scope = "global"\n[algorithm]\nname = "ProxAL"\n',
    )
    assert made.problem.server is not None
    valley = made.problem.client(3)
    np.testing.assert_array_equal(made.problem.server["x"], valley["x"])


def test_linear_constraints_name_the_features(hospitals: Path):
    text = (
        DATA
        + """[[constraints]]
type = "Linear"
coefficients = { age = -1, "ward=surgery" = 2.5 }
at_most = 0.5
[algorithm]
name = "ProxAL"
"""
    )
    made = built(hospitals, text)
    (constraint,) = made.problem.terms.constraints
    one = made.problem.client(0)
    w = jnp.arange(10.0) + 1.0
    names = dict(zip(made.rules.names, w.tolist(), strict=True))
    expected = -names["age"] + 2.5 * names["ward=surgery"]
    assert float(constraint.value(made.problem.terms, w, one)[0]) == pytest.approx(expected)
    assert float(constraint.caps(made.problem.terms, one)[0]) == 0.5
    with pytest.raises(FoedusError, match=r"no number 'aeg'.* Did you mean 'age'"):
        built(hospitals, text.replace("age =", "aeg ="))
    with pytest.raises(FoedusError, match=r"\[\[constraints\]\] 1 coefficients must be a table"):
        built(hospitals, text.replace('{ age = -1, "ward=surgery" = 2.5 }', '"age"'))


def test_rounds_can_be_played_by_sites_of_their_own(hospitals: Path):
    text = (
        DATA + '[algorithm]\nname = "FedAvg"\n[run]\nruntime = { name = "flare", timeout = 30, modules = [["mine"]] }\n'
    )
    (case,) = read(hospitals, text).cases
    assert build.runtime_of(case.settings) == {"runtime": fd.Flare(timeout=30, modules=("mine",))}
    (case,) = read(hospitals, DATA + '[algorithm]\nname = "FedAvg"\n').cases
    assert build.runtime_of(case.settings) == {}
    with pytest.raises(FoedusError, match=r"\[run\] runtime: there is no runtime 'Flair'.* Did you mean 'Flare'"):
        read(hospitals, text.replace("flare", "Flair"))
    with pytest.raises(FoedusError, match=r"\[run\] runtime: The 'timeout' of Flare"):
        read(hospitals, text.replace("30", "-30"))


def test_privacy_is_refused_where_there_is_none(hospitals: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue, "noises", dict)
    with pytest.raises(FoedusError, match=r"\[privacy\]: this version of foedus has no noise"):
        read(hospitals, DATA + '[algorithm]\nname = "FedAvg"\n[privacy]\nnoise = "Laplace"\n')


PRIVATE = """
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
drop = ["ward", "smoker", "sex", "creatinine", "previous_stays"]
[preprocess]
epsilon = 0.6
[preprocess.bounds]
age = [0, 120]
blood_pressure = [60, 220]
[algorithm]
name = "FedAvg"
k0 = 1
lr = 0.1
[privacy]
noise = "Laplace"
epsilon = 0.5
clip = 1.0
budget = 2.0
[run]
max_rounds = 9
"""


def test_what_prepares_the_data_is_in_the_ledger_and_counts_against_the_budget(hospitals: Path):
    """Two columns, three figures each, with epsilon 0.1 a figure; 1.4 of the budget are left for releases at 0.5."""
    outcome = execute.execute(read(hospitals, PRIVATE), Screen("quiet"), out=hospitals / "out")
    (run,) = outcome.runs.values()
    assert run.rounds == 2
    ledger = run.ledger
    assert ledger is not None
    before = [entry for entry in ledger.entries(run.names[0]) if entry.round == 0]
    assert [(e.sensitivity, round(e.scale, 6)) for e in before[:4]] == [(1, 10), (1, 10), (120, 1200), (160, 1600)]
    assert all(ledger.total(name) == pytest.approx(1.6) for name in run.names)
    assert "1.6 by basic composition at delta 0; Laplace noise" in str(run)
    assert "epsilon 0.6 of it, by basic composition, went to preparing the data" in str(run)
    (page,) = hospitals.glob("out/**/report.html")
    assert "epsilon 0.6 of it, by basic composition, went to preparing the data" in page.read_text()
    kept = fd.load(page.parent)
    assert kept.ledger is not None
    assert kept.ledger.total(run.names[0]) == pytest.approx(1.6)


def test_exact_messages_before_a_private_training_are_named_and_a_budget_must_leave_something(hospitals: Path):
    bounded = "epsilon = 0.6\n[preprocess.bounds]\nage = [0, 120]\nblood_pressure = [60, 220]\n"
    assert built(hospitals, PRIVATE.replace(bounded, "")).rules.exact == ("age", "blood_pressure")
    assert built(hospitals, PRIVATE).rules.exact == ()
    with pytest.raises(FoedusError, match=r"preparing the data spends epsilon 0.6 of 0.6, which leaves nothing"):
        built(hospitals, PRIVATE.replace("budget = 2.0", "budget = 0.6"))


def test_the_starter_is_read_and_says_what_was_asked(hospitals: Path):
    wish = starter.Wish("hospitals/*.csv", "readmitted", group="sex", max_loss=0.6, max_gap=0.2)
    text = starter.starter(starter.complete_wish(wish, hospitals))
    made = built(hospitals, text)
    assert made.cohort.labels == ("no", "yes")
    assert [type(c).__name__ for c in made.problem.terms.constraints] == ["LossCap", "LossGap"]
    plain = starter.starter(starter.complete_wish(starter.Wish("hospitals/*.csv", "readmitted"), hospitals))
    assert built(hospitals, plain).problem.terms.constraints == ()


def test_the_starter_minimises_over_all_rows_and_misses_fewer_positives_than_neyman_pearsons_form(hospitals: Path):
    wish = starter.Wish("hospitals/*.csv", "readmitted", max_loss=0.55)
    text = starter.starter(starter.complete_wish(wish, hospitals))
    made = built(hospitals, text)
    assert made.problem.terms.where is None
    assert text.count('# where = "label no"') == 1
    assert "Neyman-Pearson" in text
    other = built(hospitals, text.replace('# where = "label no"', 'where = "label no"'))
    assert other.problem.terms.where == fd.label(0)
    missed = []
    for one in (made, other):
        run = fd.solve(one.problem, one.algorithm, seed=0, max_rounds=2000)
        assert run.certificate.holds()
        arrays = preprocess.sites_of(one.cohort, one.rules)
        ill = [(np.asarray(X) @ run.w)[np.asarray(y) == 1] for X, y, *_ in arrays.values()]
        missed.append(float(np.mean(np.concatenate(ill) <= 0)))
    assert missed[0] < missed[1]


def test_every_key_is_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs/reference/experiment-file.md").read_text()
    top, *sections = page.split("\n## ")
    rows = {part.partition("\n")[0]: part for part in sections}
    for name, keys in {
        "At the top": file_keys.TOP,
        **{f"[{s}]": keys for s, keys in file_keys.SECTIONS.items()},
    }.items():
        part = next(text for title, text in rows.items() if title.startswith(name))
        for key in keys:
            assert f"| `{key}` |" in part, f"{key} of {name}"
    for name in (*catalogue.constraints(), *catalogue.noises()):
        assert f"`{name}`" in page or name == "PaperLaplace"  # which promises nothing
    assert "`fd.losses`" in page
    assert top.startswith("# Experiment file")


NOISE = 'noise = "Laplace"\nepsilon = 0.5\nclip = 1.0\nbudget = 2.0\n'
TOTALS = PRIVATE.replace(NOISE, "epsilon = 2.0\ndelta = 1e-5\n")


def test_epsilon_and_delta_without_a_noise_are_totals_and_preparing_the_data_is_part_of_them(hospitals: Path):
    outcome = execute.execute(read(hospitals, TOTALS), Screen("quiet"), out=hospitals / "out")
    (run,) = outcome.runs.values()
    assert run.ledger is not None
    assert run.rounds == 9
    for name in run.names:
        assert 1.99 < run.ledger.total(name, "tight") <= 2.0 + 1e-8
        assert run.ledger.total(name, "tight") < run.ledger.total(name, "basic")
    assert "asked for: epsilon 2, delta 1e-05" in str(run)
    unlimited = read(hospitals, TOTALS.replace("max_rounds = 9", ""))
    problem = fd.Problem({"a": (np.eye(2), np.zeros(2))}, loss=fd.losses.least_squares)
    assert build.rounds_of(unlimited.cases[0].settings, fd.FedAvg(), problem) == 40


def test_a_total_is_shared_out_in_a_plan_as_it_is_in_a_run(hospitals: Path):
    """Sites of their own get the noise that a simulation has."""
    made = read(hospitals, TOTALS).cases[0].settings
    noise = Plan.of(made).algorithm(2).noise  # pyright: ignore[reportAttributeAccessIssue]
    run = next(iter(execute.execute(read(hospitals, TOTALS), Screen("quiet"), out=hospitals / "o").runs.values()))
    assert run.ledger is not None
    assert 1.0 / noise.multiplier == pytest.approx(run.ledger.sensitivity[0, 0] / run.ledger.scale[0, 0])
    assert noise.most == 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("epsilon = 2.0\ndelta = 1e-5", "delta = 1e-5"), r"\[privacy\] needs epsilon, the total"),
        (("delta = 1e-5", "delta = 1e-5\nbudget = 3.0"), r"\[privacy\] budget: without noise, epsilon is the total"),
        (("delta = 1e-5", "delta = 2.0"), r"\[privacy\]: The 'delta' of Local must be a number >= 0 and < 1"),
        (("delta = 1e-5", "dleta = 1e-5"), r"\[privacy\]: Local has no setting 'dleta'.* Did you mean 'delta'"),
        (("delta = 1e-5", "before = 1.0"), r"\[privacy\]: Local has no setting 'before'"),
    ],
)
def test_a_wrong_total_in_a_file_gets_a_sentence(hospitals: Path, change, words):
    with pytest.raises(FoedusError, match=words):
        read(hospitals, TOTALS.replace(*change))


def test_a_preparation_that_leaves_nothing_of_the_total_is_refused_before_any_round(hospitals: Path):
    with pytest.raises(FoedusError, match="leaves nothing for the training"):
        execute.execute(
            read(hospitals, TOTALS.replace("epsilon = 2.0\n", "epsilon = 0.1\n")), Screen("quiet"), out=hospitals / "o"
        )
    assert not (hospitals / "o" / "run.json").exists()
