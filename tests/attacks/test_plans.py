"""Lies about a plan: who has signed it, what follows from it, and how much it may take from a site."""

import json
import re
from dataclasses import replace

import jax
import numpy as np
import pytest

pytest.importorskip("cryptography")

import contextlib

from cases import problem as five
from masked_halls import COORDINATOR, IDENTITIES, NAMES, SERVER, MaskedHall, SignedHall
from masked_wards import POLICY, SECURE, MaskedWard
from wards import QUICK

import foedus as fd
from foedus.app.experiment.plan import Plan
from foedus.app.report.card import card
from foedus.app.report.html import page as report
from foedus.app.report.site_page import page as site_page
from foedus.base.errors import FoedusError
from foedus.federation import layout, packing
from foedus.federation.exchange import Missing, Paused
from foedus.federation.limits import largest_leverage
from foedus.federation.plan import AcceptedPlans, greetings_of, plan_digest, record_of
from foedus.federation.play import play
from foedus.federation.policy import Policy, SiteFile
from foedus.federation.rounds import broadcast, first_play
from foedus.federation.site import SiteSession
from foedus.sums.play import trial_project

SUMMED = SECURE.partition("[preprocess]")[0]  # scales and words come from sums
STRANGER = trial_project(NAMES)[2]
STEPS = fd.FedAvg(k0=1, lr=0.1)
CHECKED = {
    "FedAvg": STEPS,
    "LocalSGD": fd.LocalSGD(k0=2, lr=0.1, batch=3),
    "Scaffold": fd.Scaffold(),
    "FedNova": fd.FedNova(),
    "InteriorPoint": fd.InteriorPoint(),
}


# --- who has signed it ---


def signed(hall, signer=COORDINATOR):
    return hall.signatures(signer)


def test_a_plan_that_the_coordinator_has_signed_is_played(tmp_path):
    hall = SignedHall(tmp_path, five(), STEPS, max_rounds=2)
    hall.play()
    kept = json.loads((tmp_path / "site-1" / "plan-r1.json").read_text())
    assert kept["signed"]["certificate"] == COORDINATOR.certificate.decode()
    assert json.loads(kept["statement"])["max_rounds"] == 2


SIGNERS = {
    "nobody": lambda hall: {"certificate": "", "signatures": {}},
    "the server": lambda hall: signed(hall, SERVER),
    "a site": lambda hall: signed(hall, IDENTITIES["site-2"]),
    "a stranger's coordinator": lambda hall: signed(hall, STRANGER),
    "the coordinator, for another site": lambda hall: swapped(signed(hall)),
    "the coordinator, under other words": lambda hall: wrong(signed(hall)),
}


def swapped(signatures):
    names = signatures["signatures"]
    return signatures | {"signatures": dict(zip(names, np.roll([*names.values()], 1), strict=True))}


def wrong(signatures):
    return signatures | {"signatures": dict.fromkeys(signatures["signatures"], "00" * 64)}


@pytest.mark.parametrize("who", SIGNERS)
def test_a_plan_that_somebody_else_has_signed_is_refused(tmp_path, who):
    hall = SignedHall(tmp_path, five(), STEPS, max_rounds=2)
    with pytest.raises(Missing, match="the plan is not signed by the coordinator of this project"):
        hall.play(signatures=SIGNERS[who](hall))
    assert not [*tmp_path.glob("site-*/plan-*.json")]


@pytest.mark.parametrize(
    "change", [{"seed": 3}, {"max_rounds": 3}, {"algorithm": fd.FedAvg(k0=1, lr=0.2)}, {"w0": np.full(4, 9.0)}],
    ids=["seed", "rounds", "step", "start"],
)  # fmt: skip
def test_another_plan_than_the_signed_one_is_refused(tmp_path, change):
    hall = SignedHall(tmp_path, five(), STEPS, max_rounds=2)
    if "w0" in change:
        change = {"w0": np.asarray(hall.order.w0) + 9.0}
    with pytest.raises(Missing, match="the plan is not signed"):
        hall.play(order=replace(hall.order, **change), signatures=signed(hall))


def test_a_signed_plan_is_accepted_once_under_its_name(tmp_path):
    """The coordinator may sign many plans; under one name a site answers one of them."""
    hall = SignedHall(tmp_path, five(), STEPS, max_rounds=2)
    hall.play()
    hall.open_sites()
    hall.order = replace(hall.order, max_rounds=50)
    with pytest.raises(Missing, match="it has accepted another plan under the name of this run"):
        hall.play()


def test_data_that_change_after_the_plan_was_accepted_are_told_to_the_site_alone(tmp_path):
    """Sums over the file before and after a change would differ by what has changed."""
    hall = MaskedHall(tmp_path, five(), STEPS, max_rounds=2)
    hall.play()
    with np.load(tmp_path / "site-2.npz") as file:
        arrays = {name: np.array(file[name]) for name in file.files}
    arrays["x"][0, 0] += 1.0
    np.savez(tmp_path / "site-2.npz", **arrays)
    hall.open_sites()
    with pytest.raises(Missing, match="refuses: it does not take part"):
        hall.play()
    assert any("its data are others than those for which it has accepted the plan" in line for line in hall.notes)


NUMBERS = {
    "a step near 2 to the power of 53": ({"algorithm": fd.FedAvg(k0=1, lr=2.0**53)}, "9.0072e+15"),
    "a step near the smallest number": ({"algorithm": fd.FedAvg(k0=1, lr=1e-308)}, "1e-308"),
    "a tolerance near the smallest number": ({"algorithm": fd.FedAvg(k0=1, lr=0.1, tol=1e-308)}, "1e-308"),
    "a ridge weight near 2 to the power of 53": ({"penalty": fd.penalties.Ridge(2.0**53)}, "9.0072e+15"),
    "a ridge weight near the smallest number": ({"penalty": fd.penalties.Ridge(1e-300)}, "1e-300"),
    "a limit near 2 to the power of 53": ({"regularizer": fd.regularizers.L1(2.0**53)}, "9.0072e+15"),
    "more rounds than a run has": ({"max_rounds": 10**7}, "max_rounds"),
}  # fmt: skip


@pytest.mark.parametrize("what", NUMBERS)
def test_a_plan_with_a_number_outside_the_range_of_plans_is_refused_although_it_is_signed(tmp_path, what):
    change, words = NUMBERS[what]
    hall = SignedHall(tmp_path, five(), STEPS, max_rounds=2)
    of_terms = {name: value for name, value in change.items() if name in ("penalty", "regularizer")}
    rest = {name: value for name, value in change.items() if name not in of_terms}
    hall.order = replace(hall.order, **rest, terms=replace(hall.order.terms, **of_terms))
    with pytest.raises(Missing, match=re.escape(words)):
        hall.play()
    assert not [*tmp_path.glob("site-*/plan-*.json")]


def test_nobody_draws_for_all_in_a_checked_run(tmp_path):
    """Another seed in the plan changes no answer: what a site draws is its own, and the server draws nothing."""
    answers = []
    for seed in (0, 12345):
        (tmp_path / str(seed)).mkdir()
        hall = SignedHall(tmp_path / str(seed), five(), fd.LocalSGD(k0=2, lr=0.1, batch=3), max_rounds=3, seed=seed)
        for site in hall.site.values():
            site.seed = 7
        answers.append(hall.play().conclusion.w)
    assert np.array_equal(*answers)


def test_no_message_of_a_method_that_is_checked_depends_on_a_draw_of_the_server():
    terms = five().terms
    for name, made in CHECKED.items():
        fit = made.by_sums().fit(five().over(np.zeros(terms.dim)))
        start = first_play(False)(fit.algorithm, terms, np.zeros(terms.dim), None)
        messages = [
            broadcast(False)(
                fit.algorithm, terms, 0, start.carry.server, key, 0, np.zeros((terms.clients, 2), np.uint32)
            )
            for key in (None, jax.random.key(1))
        ]
        for one, other in zip(*map(jax.tree.leaves, messages), strict=True):
            assert np.array_equal(one, other), name


def test_a_plan_whose_vectors_are_too_large_to_be_shown_to_all_is_refused_before_anybody_is_asked(tmp_path):
    draw = np.random.default_rng(0)
    wide = fd.Problem({name: (draw.normal(size=(3, 30_000)), np.ones(3)) for name in "abcde"}, loss=fd.losses.logistic)
    with pytest.raises(FoedusError, match=r"5 sites with 60001 numbers each are 2.4 MB.*verify = false"):
        MaskedHall(tmp_path, wide, STEPS, max_rounds=2)
    ward = MaskedWard(tmp_path)
    with pytest.raises(FoedusError, match=r"51 sites with 1 number.*at most 50 sites"):
        Plan.of(ward.case.settings).check(51)


def test_the_plan_stands_in_the_runs_folder_its_report_and_its_card(tmp_path):
    hall = SignedHall(tmp_path, five(), STEPS, max_rounds=2)
    result = hall.play()
    one = record_of(hall.order, hall.signatures(), 5)
    assert one["digest"] == plan_digest(greetings_of(hall.order))
    run = fd.solve(five(), STEPS, max_rounds=2)
    run.plan = one
    loaded = fd.load(run.save(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == loaded.plan == one
    assert result.conclusion.reason
    pages = (report({"one": loaded}, {}), card("one", loaded))
    for page in pages:
        for text in (
            one["digest"],
            "coordinator",
            "every site adds them up itself",
            "at most 2 rounds, in each 5 numbers",
        ):
            assert text in page


def test_the_officers_page_shows_what_an_accepted_plan_tells_of_the_rows(tmp_path):
    hall = SignedHall(
        tmp_path, five(), STEPS, policy=Policy(min_subset=1, min_sites=1, max_leverage=0.9999), max_rounds=2
    )
    hall.play()
    kit = tmp_path / "kit"
    (kit / "local").mkdir(parents=True)
    (kit / "local" / "foedus.toml").write_text("[policy]\n")
    page = site_page(kit, tmp_path / "site-1")
    (plan,) = AcceptedPlans(tmp_path / "site-1").all()
    X = hall.site["site-1"].arrays["x"]
    assert plan["limits"]["leverage"] == pytest.approx(np.max(np.diag(X @ np.linalg.pinv(X))))
    assert plan["limits"]["least"] == min(np.count_nonzero(X, axis=0))
    for text in ("Plans that were accepted here", plan["plan"][:16], "coordinator", f"{plan['limits']['share']:.3g}"):
        assert text in page


# --- what follows from it ---


def put(**more):
    return lambda header: header | more


def table(header):
    """The right question with another capacity of its table of words."""
    return header | {"table": header["table"] | {"capacity": 7}} if "table" in header else header


def further(header):
    columns = header["columns"]
    return header | {"columns": columns | {"sums": [*columns["sums"], *columns["sums"][:1]]}}


def fewer(header):
    columns = header["columns"]
    return header | {"columns": columns | {"sums": columns["sums"][:1]}}


def other_means(header):
    return header | {"means": {name: mean + 1e-9 for name, mean in header["means"].items()}}


def one_mean(header):
    return header | {"means": dict([*header["means"].items()][:1])}


def far_columns(header):
    sketches = {site: one | {"features": one["features"][:1]} for site, one in header["sketches"].items()}
    return header | {"sketches": sketches}


def fewer_sites(header):
    return header | {"sketches": dict([*header["sketches"].items()][:2])}


RULES = {"schema": 1, "columns": [], "label": "readmitted", "labels": ["no", "yes"]}


def in_plan(number):
    """A number that the plan's settings hold, changed."""

    def lie(header):
        text = json.dumps(header["plan"]).replace('"max_rounds", 2', f'"max_rounds", {number!r}')
        return header | {"plan": json.loads(text)}

    return lie


LIES = {
    "sums of fewer columns": ("sums", fewer),
    "sums of a column twice": ("sums", further),
    "another table of words": ("sums", table),
    "sums with noise": ("sums", put(noise={"bounds": {}, "epsilon": 1.0, "figures": 1})),
    "squares from other means": ("squares", other_means),
    "squares of one column": ("squares", one_mean),
    "squares before the sums": ("sums", lambda header: header | {"ask": "squares", "means": {}}),
    "rules of the server's": ("prepare", put(rules=RULES)),
    "columns that this site has not told": ("cohort", far_columns),
    "columns of fewer sites": ("cohort", fewer_sites),
    "a start before the sums": ("sums", lambda header: {k: header[k] for k in ("run", "round")} | {"ask": "prepare"}),
    "a greeting with terms": ("hello", put(terms={"fields": {}}, secure=True)),
    "a join before the greeting": ("hello", put(ask="join")),
    "a plan for other sites": ("columns", put(sites=["a", "b", "c", "d"])),
    "a plan of another kind": ("columns", put(plan=3)),
    "a plan with a bound near 2 to the power of 53": ("columns", in_plan(2.0**53)),
    "a plan with a number near the smallest": ("columns", in_plan(1e-308)),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_does_not_follow_from_the_plan_is_refused_and_on_record(tmp_path, lie):
    kind, change = LIES[lie]
    ward = MaskedWard(tmp_path, SUMMED, replace(POLICY, min_subset=1))
    honest, victim = ward.ask, ward.names[1]
    lies = []

    def ask(messages, timeout):
        sent = dict(messages)
        if victim in sent:
            header, payload = packing.unseal(sent[victim])
            if header["ask"] == kind:
                changed = change(header)
                lies.append(changed != header)
                sent[victim] = packing.seal(changed, payload)
        return honest(sent, timeout)

    ward.ask = ask
    with pytest.raises((Missing, Paused, FoedusError)):
        play(ward.request(), tmp_path / "server", ask, QUICK, ward.notes.append, lambda: False)
    assert any(lies), "the server has not lied"
    lines = map(json.loads, (tmp_path / victim / "messages.jsonl").read_text().splitlines())
    assert {line["code"] for line in lines} & {"breach", "unknown", "policy", "other-run", "failed", "keys"}


def test_the_honest_preparation_is_the_simulators_and_each_site_finds_its_rules(tmp_path):
    ward = MaskedWard(tmp_path, SUMMED, replace(POLICY, min_subset=1))
    result = ward.play()
    for site in ward.site.values():
        assert site.tables.rules.to_json() == result.rules
        assert site.tables.totals
    assert {packing.unseal(raw)[0]["code"] for raw in ward.heard} == {"ok"}


# --- how much it may take ---


def test_a_column_that_few_rows_have_keeps_a_site_out(tmp_path):
    strict = Policy(min_subset=20, min_sites=1)
    hall = MaskedHall(tmp_path, large(), STEPS, policy=strict, max_rounds=2)
    hall.play()
    with np.load(tmp_path / "site-2.npz") as file:
        arrays = {name: np.array(file[name]) for name in file.files}
    for rows, is_told in ((20, True), (19, False), (0, True)):
        arrays["x"][:, 1] = np.arange(len(arrays["x"])) < rows
        folder = tmp_path / str(rows)
        folder.mkdir()
        hall = MaskedHall(folder, large(), STEPS, policy=strict, max_rounds=2)
        np.savez(folder / "site-2.npz", **arrays)
        if is_told:
            hall.play()
            continue
        with pytest.raises(Missing, match="it does not take part"):
            hall.play()
        assert any("a column is other than 0 in 19 rows" in line for line in hall.notes)


def test_a_limit_that_a_site_sets_on_its_rows_is_checked_before_anything_is_summed(tmp_path):
    ward = MaskedWard(tmp_path, SUMMED, replace(POLICY, min_subset=1))
    request, name = ward.request(), ward.names[1]
    strict = SiteFile(ward.sources[name], replace(POLICY, min_subset=1, max_leverage=0.01))
    ward.site[name] = SiteSession(name, strict, tmp_path / name, ward.notes.append, ward.identities[name])
    with pytest.raises(Missing, match="it does not take part"):
        play(request, tmp_path / "server", ward.ask, QUICK, ward.notes.append, lambda: False)
    (line,) = map(json.loads, (tmp_path / name / "messages.jsonl").read_text().splitlines())
    assert (line["purpose"], line["code"]) == ("columns", "data")
    assert any("max_leverage" in note for note in ward.notes)


def test_no_refusal_after_acceptance_depends_on_the_data(tmp_path):
    """Whatever is in a file, a site that has answered the plan plays the run to its end."""
    draw, ends = np.random.default_rng(5), set()
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        ward = MaskedWard(folder, SUMMED, replace(POLICY, min_subset=int(draw.integers(1, 4))))
        path = folder / "hospitals" / f"{ward.names[1]}.csv"
        head, *lines = path.read_text().splitlines()
        keep = draw.permutation(len(lines))[: int(draw.integers(20, 60))]
        spoilt = [
            ",".join("" if draw.random() < 0.01 * number else cell for cell in lines[i].split(","))
            for i in sorted(keep)
        ]
        path.write_text("\n".join([head, *spoilt]) + "\n")
        with contextlib.suppress(Missing, Paused, FoedusError):
            ward.play()
        lines = map(json.loads, (folder / ward.names[1] / "messages.jsonl").read_text().splitlines())
        codes = [(line["purpose"], line["code"]) for line in lines]
        assert not [code for code in codes if code[0] != "columns" and code[1] not in ("ok", "other-run")], codes
        ends.add(codes[-1])
    assert ends >= {("end", "ok"), ("columns", "data")}, ends


def large():
    """Five sites with 60 to 100 rows each."""
    draw = np.random.default_rng(4)
    sites = {name: draw.normal(size=(rows, 4)) for name, rows in zip("abcde", (60, 70, 80, 90, 100), strict=True)}
    return fd.Problem({name: (X, X @ np.ones(4)) for name, X in sites.items()}, loss=fd.losses.least_squares)


def answers_of_site(site):
    """The share that a site may be asked for, counted by hand: replies of FedAvg, two certificates, its own rows."""
    dim, sites = site.terms.dim, site.terms.clients
    numbers = sum(leaf.size for leaf in jax.tree.leaves(site.forms[0].shape))
    after = sum(leaf.size for leaf in jax.tree.leaves(layout.parts(site.terms, site.measured_data)))
    assert numbers >= dim
    return (site.rounds * numbers + 2 * after) / (sites * sum(site.arrays[name].size for name in ("x", "y")))


def test_a_run_that_takes_more_numbers_than_the_policy_allows_is_refused_with_the_number_of_rounds(tmp_path):
    strict = Policy(min_subset=1, min_sites=1, max_answers=0.33)
    most, refusals, told = 1000, [], []
    for _ in range(6):  # sites have other numbers of rows, and each says its own
        folder = tmp_path / str(most)
        folder.mkdir()
        hall = MaskedHall(folder, large(), STEPS, policy=strict, max_rounds=most)
        try:
            hall.play()
            break
        except Missing as no:
            told.append(str(no))
            refusals.append(next(line for line in hall.notes[::-1] if "max_answers" in line))
            most = int(refusals[-1].rpartition("at most ")[2].split()[0])
    assert 1 <= most < 1000
    assert all(no.endswith("it does not take part; its own log says why.") for no in told), "no number of rows is told"
    assert all("lets 0.33 times as many numbers leave" in no for no in refusals)
    assert max(map(answers_of_site, hall.site.values())) <= 0.33
    assert f"at most {most} rounds would do" in refusals[-1]
    smallest = min(hall.site.values(), key=lambda site: site.arrays["x"].size)
    smallest.rounds += 1
    assert answers_of_site(smallest) > 0.33


def test_a_person_reads_how_many_numbers_would_leave(tmp_path):
    ward = MaskedWard(tmp_path, SUMMED, replace(POLICY, min_subset=1, approve="ask"))
    with pytest.raises(Paused, match="waits for the approval"):
        ward.play()
    (request,) = ward.site[ward.names[0]].approvals.all()
    (line,) = [line for line in request.summary if line.startswith("By the columns of this site alone. Numbers:")]
    assert "at most 2 times" in line
    assert "in sums over 4 sites" in line


def test_leverage_is_the_diagonal_of_the_hat_matrix():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(40, 5))
    X[:, 4] = X[:, 0] + X[:, 1]  # collinear: the pseudoinverse
    hat = X @ np.linalg.pinv(X)
    assert largest_leverage(X) == pytest.approx(np.max(np.diag(hat)), abs=1e-12)
    X[3] = [0.0, 0.0, 0.0, 1e6, 0.0]
    assert largest_leverage(X) > 0.999


def test_a_site_with_a_row_that_stands_out_stays_out(tmp_path):
    strict = Policy(min_subset=1, min_sites=1, max_leverage=0.95)
    hall = MaskedHall(tmp_path, five(), STEPS, policy=strict, max_rounds=2)
    hall.play()
    with np.load(tmp_path / "site-2.npz") as file:
        arrays = {name: np.array(file[name]) for name in file.files}
    arrays["x"][0] = 1e9
    folder = tmp_path / "again"
    folder.mkdir()
    hall = MaskedHall(folder, five(), STEPS, policy=strict, max_rounds=2)
    np.savez(folder / "site-2.npz", **arrays)
    with pytest.raises(Missing, match="refuses: it does not take part"):
        hall.play()
    assert any("max_leverage" in line for line in hall.notes)
