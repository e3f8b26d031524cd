"""Attacks on a site by whoever speaks to it: a server that repeats, lies and invents, a crash, a second job, a file.

Each test is an attack that a site must survive. No FLARE is needed: the bytes are those that travel over it.
"""

import dataclasses
import hashlib
import json
import multiprocessing
import os
import re
import stat
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from intruders import DIM, ROWS, STRICT, Intruder, private, problem, rows

import foedus as fd
from foedus.app.report import card, html
from foedus.federation import layout, packing, spec
from foedus.federation.policy import Policy
from foedus.federation.site_ledger import Damaged, Limits, Release, SiteLedger
from foedus.runtime import spine


def exact_step(intruder: Intruder, w: np.ndarray, lr: float = 0.5) -> np.ndarray:
    """What the site would release without noise: the clipped step, from a formula of its own."""
    x, y = intruder.arrays["x"], np.where(intruder.arrays["y"] > 0, 1.0, -1.0)
    s = -y / (1.0 + np.exp(y * (x @ w)))
    g = s[:, None] * x
    g *= np.minimum(1.0, 1.0 / np.abs(g).sum(axis=1, keepdims=True))  # Laplace noise clips in the 1-norm
    return w - lr * g.mean(axis=0)


# --- 1. noise that repeats ---


def test_two_runs_with_different_epsilons_do_not_give_the_noiseless_release(tmp_path):
    """With one secret for all runs, 2·z(ε = 1) − z(ε = 0.5) was the exact step, to 1e-17."""
    released = {}
    for epsilon in (0.5, 1.0):
        intruder = Intruder(tmp_path, private(fd.Laplace(epsilon=epsilon, clip=1.0)), Policy(privacy=True))
        intruder.enter(f"run{epsilon:g}".replace(".", "-"), max_rounds=1)
        header, released[epsilon] = intruder.round(0, run=f"run{epsilon:g}".replace(".", "-"))
        assert header["code"] == "ok"
    exact = exact_step(intruder, np.zeros(DIM))
    assert np.max(np.abs(2 * released[1.0] - released[0.5] - exact)) > 1e-6
    assert intruder.spent == pytest.approx(1.5)


def test_a_retraining_with_one_new_patient_does_not_give_the_patients_row(tmp_path):
    intruder = Intruder(tmp_path, private(), Policy(privacy=True)).enter("january", 1)
    _, before = intruder.round(0, run="january")
    intruder.arrays["x"][7] = [3.0, -2.0, 1.0]
    np.savez(tmp_path / "data.npz", **intruder.arrays)
    intruder.start()
    intruder.enter("february", 1)
    _, after = intruder.round(0, run="february")
    moved = exact_step(intruder, np.zeros(DIM))
    intruder.arrays = rows()
    moved = moved - exact_step(intruder, np.zeros(DIM))
    assert np.max(np.abs((after - before) - moved)) > 1e-6
    assert intruder.spent == pytest.approx(0.5)


def test_a_month_later_the_same_messages_do_not_tell_whether_the_data_have_changed(tmp_path):
    intruder = Intruder(tmp_path, private(), Policy(privacy=True)).enter("r1", 1)
    _, first = intruder.round(0)
    intruder.arrays["x"][7] = [3.0, -2.0, 1.0]
    np.savez(tmp_path / "data.npz", **intruder.arrays)
    intruder.start()
    intruder.enter("r1", 1)
    _, again = intruder.round(0)
    np.testing.assert_array_equal(again, first)
    assert intruder.spent == pytest.approx(0.25)


# --- 2. exact figures from a private site ---


@pytest.mark.parametrize("policy", [Policy(**STRICT), Policy()], ids=["the policy asks", "the run has noise"])
def test_a_private_site_measures_nothing_at_any_model(tmp_path, policy):
    intruder = Intruder(tmp_path, private(), policy).enter()
    w_and_nu = (layout.vector(DIM), layout.vector(0))
    for w in (np.zeros(DIM), np.ones(DIM), np.full(DIM, 1e5)):
        content = packing.to_bytes((w, np.zeros(0)), w_and_nu)
        header, payload = intruder.say("measure", content, since=-1)
        assert payload == b""
        assert {k: v for k, v in header.items() if k not in ("site", "run", "round", "ask")} == {
            "code": "ok",
            "answers": False,
        }


def test_an_algorithm_without_noise_gets_nothing_from_a_private_site(tmp_path):
    intruder = Intruder(tmp_path, fd.FedAvg(lr=0.5))
    assert intruder.hello()["code"] == "policy"
    assert intruder.join()["code"] == "other-run"
    assert intruder.say("round", intruder.message(np.zeros(DIM)), round=0, phase=0, since=-1)[1] == b""


def test_a_reply_tells_neither_the_sensitivity_nor_the_scale_nor_the_number_of_rows(tmp_path):
    """Both are functions of the number of rows, which is the site's own."""
    intruder = Intruder(tmp_path, private()).enter()
    header, _ = intruder.round(0)
    assert {*header} == {"code", "site", "run", "round", "ask", "releases", "receipt"}
    assert header["releases"] == 1
    assert {*header["receipt"]} == {"lines", "last"}
    (line,) = SiteLedger(tmp_path / "site").lines
    guess = dataclasses.replace(line, salt="")  # the server may know all the rest, and try every number of rows
    digests = {hashlib.sha256(one.text().encode()).hexdigest() for one in (guess, line)}
    assert header["receipt"]["last"] in digests - {hashlib.sha256(guess.text().encode()).hexdigest()}
    intruder.round(1)
    assert len({line.salt for line in SiteLedger(tmp_path / "site").lines}) == 2


def test_stopping_rules_that_send_the_gradient_are_dropped_at_the_site(tmp_path):
    """FedEPM's default rule sends f_i and its gradient; a coordinator would have dropped it, a liar does not."""
    algorithm = fd.FedEPM(rho=1.0, restart=True, noise=fd.Laplace(epsilon=0.25, clip=1.0, sampler="opendp"))
    assert algorithm.stop == "printed"
    intruder = Intruder(tmp_path, algorithm).enter()
    header, content = intruder.say(
        "round", packing.to_bytes(*_epm_message(algorithm, intruder)), round=0, phase=0, since=-1
    )
    assert header["code"] == "ok"
    assert len(content) == 8 * DIM + 1, "the noisy parameters, and whether they are new"


def _epm_message(algorithm, intruder):
    resolved = algorithm.fit(fd.Problem.without_data(intruder.terms)).algorithm
    server = resolved.init(intruder.terms, jnp.zeros(DIM), None)
    one = spine.message_for(resolved.broadcast(intruder.terms, server, jnp.zeros(3)), 0)
    return one, layout.messages(resolved, intruder.terms, None)[0]


# --- 3. limits that do not bind ---


def test_the_same_round_with_another_model_is_another_release_with_other_noise(tmp_path):
    intruder = Intruder(tmp_path, private()).enter()
    w = np.array([0.5, -0.5, 0.25])
    _, first = intruder.round(0)
    _, second = intruder.round(0, w)
    difference = exact_step(intruder, w) - exact_step(intruder, np.zeros(DIM))
    assert np.max(np.abs(second - first - difference)) > 1e-6
    assert intruder.spent == pytest.approx(0.5)


def test_the_same_request_gets_the_same_bytes_and_counts_once(tmp_path):
    intruder = Intruder(tmp_path, private()).enter()
    sealed = packing.seal(
        {"ask": "round", "run": "r1", "round": 0, "phase": 0, "since": -1}, intruder.message(np.zeros(DIM))
    )
    replies = {intruder.site.answer(sealed) for _ in range(5)}
    intruder.start()  # after a crash too, and before it has joined again
    replies.add(intruder.site.answer(sealed))
    assert len(replies) == 1
    assert intruder.spent == pytest.approx(0.25)


@pytest.mark.parametrize("number", [1, 200, -1, -5, True, 0.5, None, "0"])
def test_no_round_is_played_beyond_those_that_were_announced(tmp_path, number):
    intruder = Intruder(tmp_path, private()).enter(max_rounds=1)
    header, reply = intruder.round(number)
    assert header["code"] in ("policy", "unknown")
    assert reply.size == 0
    assert intruder.spent == 0.0


def test_no_more_is_released_in_a_run_than_it_has_announced_rounds(tmp_path):
    """Without a limit on epsilon too: the same round with ever other models was a run without an end."""
    intruder = Intruder(tmp_path, private(), Policy(privacy=True)).enter(max_rounds=2)
    codes = [intruder.round(k % 2, np.full(DIM, k / 10))[0]["code"] for k in range(6)]
    assert codes == ["ok", "ok", *["policy"] * 4]
    intruder.say("end")
    intruder.enter(max_rounds=2)
    assert intruder.round(0, np.ones(DIM))[0]["code"] == "policy", "nor under the same name again"


def test_a_run_that_joins_with_more_rounds_than_it_greeted_with_is_refused(tmp_path):
    intruder = Intruder(tmp_path, private())
    assert intruder.hello(max_rounds=1)["code"] == "ok"
    assert intruder.join(max_rounds=4)["code"] == "other-run"


def test_the_total_is_the_sites_whatever_a_server_calls_its_runs(tmp_path):
    """Four rounds of 0.25 are all there is, under one name or under many, and the same name again."""
    intruder = Intruder(tmp_path, private())
    played = 0
    for name in ("r1", "r2", "r1", "r3", "r1", "r4", "r5"):
        for number in range(2):
            if intruder.hello(name, max_rounds=2)["code"] != "ok" or intruder.join(name, max_rounds=2)["code"] != "ok":
                continue
            _, reply = intruder.round(number, np.full(DIM, played / 10), run=name)
            played += bool(reply.size)
    assert played <= 4
    assert intruder.spent <= 1.0 + 1e-9


def test_every_further_release_is_refused_once_the_total_is_spent(tmp_path):
    intruder = Intruder(tmp_path, private()).enter(max_rounds=4)
    models = [np.full(DIM, i / 10) for i in range(6)]
    codes = [intruder.round(0, w)[0]["code"] for w in models]
    assert codes == ["ok"] * 4 + ["policy"] * 2
    assert intruder.spent == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("noise", "sentence"),
    [
        (fd.Gaussian(epsilon=0.01, delta=0.999, clip=1.0), "allows delta 1e-05, and the noise has 0.999"),
        (fd.Gaussian(epsilon=0.01, delta=1e-5, clip=1.0), None),
        (fd.Laplace(epsilon=0.5, clip=1.0), "allows epsilon 1 a run at delta 1e-05, and with this run"),
    ],
)
def test_noise_that_hides_too_little_is_refused_before_data_are_read(tmp_path, noise, sentence):
    intruder = Intruder(tmp_path, private(noise), Policy(**STRICT))
    (tmp_path / "data.npz").unlink()
    reply = intruder.hello()
    if sentence is None:
        assert reply["code"] == "data", "it is allowed, and only then are the data missed"
    else:
        assert reply["code"] == "policy"
        assert sentence in reply["sentence"]


def test_the_papers_noise_and_draws_from_a_seed_are_no_privacy(tmp_path):
    paper = fd.FedEPM(rho=1.0, noise=fd.PaperLaplace(0.1))
    assert "adds no noise with a guarantee" in Intruder(tmp_path, paper).hello()["sentence"]
    seeded = private()
    seeded = dataclasses.replace(seeded, noise=dataclasses.replace(seeded.noise, sampler="simulation"))
    for policy in (Policy(**STRICT), Policy()):
        assert "must be drawn by OpenDP" in Intruder(tmp_path, seeded, policy).hello()["sentence"]


@pytest.mark.parametrize("name", ["weight", "x", "y", "x.bound", "x.gram", "y.square", "group", "site.x", "../x"])
def test_arrays_of_the_server_do_not_take_the_place_of_the_sites(tmp_path, name):
    """A one-hot `weight` made every gradient one row's; a large `x.bound` switched clipping off."""
    intruder = Intruder(tmp_path, private())
    extra = {name: np.eye(ROWS)[0]}
    assert intruder.hello(extra=extra)["code"] == "ok"
    reply = intruder.join(extra=extra)
    assert reply["code"] == "policy"
    assert "no part of its terms" in reply["sentence"]
    assert intruder.round(0)[0]["code"] == "other-run"


def test_a_negative_step_is_refused(tmp_path):
    """It made the scale of the noise negative, and the release came without noise."""
    honest = private()
    settings = spec.encode(honest)
    settings["fields"]["plain"]["fields"]["lr"] = -0.5
    intruder = Intruder(tmp_path, honest)
    reply = intruder.hello(algorithm=settings)
    assert reply["code"] == "policy"
    assert "lr" in reply["sentence"]


@pytest.mark.parametrize("value", [0.0, 1.0, 2.0, 7.0])
def test_a_refusal_does_not_tell_whether_anybody_has_a_label(tmp_path, value):
    """Labels 0 and 1 are common; nobody has 2, and five rows have 7: these two get the same answer."""
    arrays = rows()
    arrays["y"][:5] = 7.0
    stated = problem(constraints=[fd.constraints.LossCap(fd.label(1.0), at_most=0.9)]).terms
    cap = dataclasses.replace(stated.constraints[0], where=fd.label(value))
    intruder = Intruder(tmp_path, fd.ProxAL(), Policy(), arrays=arrays, problem=problem(rows()))
    intruder.terms = dataclasses.replace(stated, loss=fd.losses.least_squares, constraints=(cap,))
    reply = intruder.hello()
    if value in (2.0, 7.0):
        assert (reply["code"], reply["sentence"]) == (
            "data",
            "it does not take part; its own log says why",
        )
    else:
        assert (reply["code"], intruder.join()["code"]) == ("ok", "ok")


def test_a_private_site_refuses_terms_about_labels_without_a_look_at_its_data(tmp_path):
    intruder = Intruder(tmp_path, private(), where=fd.label(1.0))
    (tmp_path / "data.npz").unlink()
    reply = intruder.hello()
    assert reply["code"] == "policy"
    assert "takes no where=" in reply["sentence"]


# --- 4. the ledger below the truth ---


def test_a_reply_that_is_lost_has_been_released_and_counts(tmp_path):
    """The server that lost a reply goes on from the state before it: both releases stand in the ledger."""
    intruder = Intruder(tmp_path, private()).enter()
    intruder.round(0)  # lost on its way
    intruder.round(1, np.ones(DIM) / 10, since=-1)
    assert intruder.spent == pytest.approx(0.5)


def test_after_a_power_cut_at_any_moment_no_more_is_released_than_the_budget(tmp_path, monkeypatch):
    """The cut comes after the ledger is written, before the state, and before the copy of the reply is kept."""
    intruder = Intruder(tmp_path, private()).enter()
    released = 0
    for number in range(12):
        for moment in ("foedus.federation.gate.write_whole", "foedus.runtime.checkpoint.write_whole", None):
            with monkeypatch.context() as cut:
                if moment is not None:
                    cut.setattr(moment, _power_cut)
                try:
                    _, reply = intruder.round(0, np.full(DIM, number / 50))
                    released += bool(reply.size)
                except PowerCut:
                    pass
            intruder.start()
            if intruder.hello()["code"] != "ok" or intruder.join()["code"] != "ok":
                break
    assert released >= 1
    assert released * 0.25 <= intruder.spent <= 1.0 + 1e-9


class PowerCut(BaseException):
    """Nothing that the code could catch."""


def _power_cut(*told):
    raise PowerCut


def test_a_line_that_a_crash_has_torn_was_never_sent_and_a_cut_ledger_stops_the_site(tmp_path):
    intruder = Intruder(tmp_path, private()).enter()
    intruder.round(0)
    path = tmp_path / "site" / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert SiteLedger(tmp_path / "site").total(0.0) == pytest.approx(0.25)
    assert path.read_bytes() == whole
    for damage in (b"", whole[: len(whole) // 2], whole.replace(b"0.25", b"0.01"), b"[]\n" + whole, whole + b"x\n"[:0]):
        path.write_bytes(damage)
        if damage == whole:
            assert SiteLedger(tmp_path / "site").total(0.0) == pytest.approx(0.25)
            continue
        with pytest.raises(Damaged, match="is damaged or was changed; nothing is released until it is restored"):
            SiteLedger(tmp_path / "site")
    path.unlink()
    with pytest.raises(Damaged):
        intruder.start()


def test_a_ledger_that_is_damaged_under_a_running_site_stops_its_releases(tmp_path):
    intruder = Intruder(tmp_path, private()).enter()
    intruder.round(0)
    (tmp_path / "site" / "ledger.jsonl").write_bytes(b"")
    header, reply = intruder.round(1, np.ones(DIM) / 10)
    assert header["code"] == "ledger"
    assert reply.size == 0


def test_the_record_of_version_0_1_is_carried_over(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "privacy.json").write_text(json.dumps({"old": 0.75}))
    intruder = Intruder(tmp_path, private())
    assert intruder.spent == pytest.approx(0.75)
    assert intruder.hello(max_rounds=2)["code"] == "policy"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "privacy.json").write_text("{")
    with pytest.raises(Damaged, match="must not be lost"):
        SiteLedger(tmp_path / "other")


def test_a_full_disk_stops_releases(tmp_path, monkeypatch):
    intruder = Intruder(tmp_path, private()).enter()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foedus.federation.site_ledger.os.fsync", full)
    header, reply = intruder.round(0)
    assert (header["code"], reply.size) == ("failed", 0)
    monkeypatch.undo()
    assert intruder.round(0)[1].size == DIM
    assert intruder.spent == pytest.approx(0.25)


def test_a_clock_that_goes_back_gives_no_budget_back(tmp_path, monkeypatch):
    intruder = Intruder(tmp_path, private()).enter()
    for i in range(4):
        intruder.round(0, np.full(DIM, i / 10))
    monkeypatch.setattr(time, "gmtime", lambda *told: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))
    intruder.start()
    assert intruder.hello("r2")["code"] == "policy"
    assert intruder.spent == pytest.approx(1.0)


def test_two_jobs_at_once_do_not_overwrite_each_others_ledger(tmp_path):
    SiteLedger(tmp_path)
    workers = [multiprocessing.get_context("spawn").Process(target=_spend, args=(tmp_path, str(i))) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    ledger = SiteLedger(tmp_path)
    assert len(ledger.lines) == 20, "the limit of 2 holds for both together, and every line is there"
    assert ledger.total(0.0) == pytest.approx(2.0)


def _spend(folder: Path, run: str) -> None:
    from foedus.federation.site_ledger import Exceeded

    ledger = SiteLedger(folder)
    for _ in range(15):
        try:
            ledger.charge(run, "", [Release("a figure", "laplace", 0.1, 1.0)], Limits(np.inf, 2.0, 0.0))
        except Exceeded:
            return


@pytest.mark.parametrize("forgets", ["earlier runs", "a round"])
def test_a_ledger_that_forgets_is_told_apart_from_one_that_does_not(tmp_path, monkeypatch, forgets):
    """Four rounds of 0.25 spend the total of 1; with either mutant the same attack gets more."""

    def attack(folder: Path) -> int:
        folder.mkdir()
        intruder, played = Intruder(folder, private(), Policy(privacy=True, max_epsilon_total=1.0)), 0
        for run in map("r{}".format, range(8)):
            if "ok" == intruder.hello(run, max_rounds=1)["code"] == intruder.join(run, max_rounds=1)["code"]:
                played += intruder.round(0, run=run)[1].size > 0
        return played

    assert attack(tmp_path / "whole") == 4
    if forgets == "earlier runs":
        total = SiteLedger.total
        monkeypatch.setattr(
            SiteLedger, "total", lambda self, delta, run=None, more=(), by=None: total(self, delta, run or by, more)
        )
    else:
        counts = SiteLedger.counts

        def one_less(self, run, more=()):
            counted = counts(self, run, more)
            for part in counted.values():
                part.subtract(dict.fromkeys(part, 1))
            return counted

        monkeypatch.setattr(SiteLedger, "counts", one_less)
    assert attack(tmp_path / "forgetful") > 4


# --- 5. arithmetic ---


def test_one_enormous_row_is_not_visible_as_a_run_that_ends(tmp_path):
    arrays = rows()
    arrays["x"][3, 0] = 1e200
    noise = fd.Gaussian(epsilon=0.1, delta=1e-6, clip=1.0, rows=2.0)
    intruder = Intruder(tmp_path, private(noise), Policy(privacy=True), arrays=arrays).enter()
    header, reply = intruder.round(0)
    assert header["code"] == "ok"
    assert np.all(np.isfinite(reply))
    assert np.max(np.abs(reply)) < 1e3


@pytest.mark.parametrize("size", [2.0**52, 1e300, np.inf, np.nan])
def test_a_model_whose_rounding_would_drown_the_noise_is_refused(tmp_path, size):
    intruder = Intruder(tmp_path, private()).enter()
    header, reply = intruder.round(0, np.full(DIM, size))
    assert (header["code"], reply.size) == ("unknown", 0)
    assert intruder.spent == 0.0


def test_the_last_bits_of_a_release_do_not_name_the_model_it_started_from(tmp_path):
    """With noise added to w + step in floating point, what can come out depends on what went in; here both can."""
    intruder = Intruder(tmp_path, private(fd.Laplace(epsilon=0.05, clip=1.0)), Policy(privacy=True)).enter()
    _, first = intruder.round(0)
    fine = np.abs(first) * 2.0**40
    assert np.any(fine != np.round(fine)), "OpenDP's grid is finer than that of a sum of floats of this size"


# --- 6. code and files from outside (the rest needs FLARE: tests/federation/test_flare_attacks.py) ---


@pytest.mark.parametrize("run", ["../../etc", "a/b", "", ".", "r1\n", "x" * 65, 7, None, ["r1"]])
def test_the_name_of_a_run_is_no_path(tmp_path, run):
    intruder = Intruder(tmp_path, private())
    before = sorted(p.name for p in tmp_path.rglob("*"))
    for ask in ("hello", "join", "round", "end", "columns"):
        assert intruder.say(ask, run=run)[0]["code"] == "unknown"
    assert sorted(p.name for p in tmp_path.rglob("*") if p.name != "messages.jsonl") == before


def test_only_the_gate_seals_what_leaves_a_site():
    """No module that a site's session is made of makes a reply, except the gate."""
    folder = Path(fd.__file__).parent / "federation"
    for name in ("site", "preparation", "approval", "agreement", "site_ledger", "policy", "executor"):
        file = next(folder.rglob(f"{name}.py"))
        assert "packing.seal(" not in file.read_text(), name
    assert len(re.findall(r"packing\.seal\(", (folder / "gate.py").read_text())) == 4


# --- 7. whole rows by ordinary means ---


def test_a_batch_of_one_row_is_refused(tmp_path):
    for batch, code in ((1, "policy"), (19, "policy"), (20, "ok")):
        reply = Intruder(tmp_path, fd.LocalSGD(batch=batch, k0=1), Policy()).hello()
        assert reply["code"] == code
    assert "fewer than 20 rows" in Intruder(tmp_path, fd.LocalSGD(batch=1, k0=1), Policy()).hello()["sentence"]


def test_one_site_alone_is_refused(tmp_path):
    alone = fd.Problem({"city": rows()}, loss=fd.losses.logistic).over(np.zeros(DIM))
    intruder = Intruder(tmp_path, fd.FedAvg(lr=0.5), Policy(), problem=alone)
    assert "at least 2 sites" in intruder.hello()["sentence"]


@pytest.mark.parametrize(
    ("where", "code"),
    [
        (fd.label(1.66), "data"),  # a regression's own label names one row
        (fd.group(32.0), "data"),  # so does an age as the group
        (fd.group(1.0), "data"),  # all but few is as telling as few
        (fd.group(5.0), "ok"),
        (dataclasses.replace(fd.label(0.5), key="x"), "policy"),
    ],
)
def test_no_subset_of_few_rows_has_a_gradient(tmp_path, where, code):
    arrays = rows()
    arrays["y"] = np.round(np.random.default_rng(5).normal(size=ROWS), 2)
    arrays["y"][0] = 1.66
    arrays["group"] = np.where(np.arange(ROWS) < 25, 5.0, 6.0)
    if getattr(where, "value", 0) == 1.0:
        arrays["group"] = np.where(np.arange(ROWS) < 55, 1.0, 2.0)
    arrays["group"][0] = 32.0 if where.value == 32.0 else arrays["group"][0]
    three = {name: {**arrays} for name in ("city", "north", "south")}
    stated = fd.Problem(three, loss=fd.losses.least_squares).over(np.zeros(DIM))
    intruder = Intruder(tmp_path, fd.FedAvg(lr=0.1), Policy(), arrays=arrays, problem=stated)
    intruder.terms = dataclasses.replace(stated.terms, where=where)
    assert intruder.hello()["code"] == code
    assert intruder.join()["code"] == ("ok" if code == "ok" else "other-run")


def test_a_run_is_not_joined_without_a_greeting_in_which_rows_are_counted(tmp_path):
    intruder = Intruder(tmp_path, fd.FedAvg(lr=0.5), Policy(min_rows=1000))
    assert intruder.join()["code"] == "other-run"
    assert intruder.hello()["sentence"] == "it does not take part; its own log says why"
    assert intruder.join()["code"] == "other-run"


def test_a_site_with_fewer_rows_than_a_subset_needs_stays_out(tmp_path):
    few = {k: v[:19] for k, v in rows().items()}
    intruder = Intruder(tmp_path, fd.FedAvg(lr=0.5), Policy(), arrays=few, problem=problem())
    assert intruder.hello()["code"] == "data"


# --- 8. files ---


def test_what_a_site_keeps_is_readable_by_its_owner_alone(tmp_path):
    old = os.umask(0o022)
    try:
        intruder = Intruder(tmp_path, private()).enter()
        intruder.round(0)
    finally:
        os.umask(old)
    kept = [tmp_path / "site", *(tmp_path / "site").rglob("*")]
    assert len(kept) >= 6
    for path in kept:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


# --- 9. words ---


def test_what_is_printed_about_privacy_is_what_is_proved():
    """The relation that keeps d_i fixed is not "adding one example", and what is simulated is called so."""
    half = fd.Laplace(epsilon=1.0, clip=1.0, neighbours="add-or-remove")
    assert "adding" not in str(half)
    assert "the number of examples kept fixed" in str(half)
    run = fd.solve(problem(), fd.FedAvg(k0=1), privacy=fd.Local(epsilon=1, delta=1e-5), max_rounds=3, seed=724_001)
    assert "simulat" in str(run).lower()
    assert "simulat" in str(run.ledger).lower()
    for page in (html.page({"FedAvg": run}, {}), card.card("FedAvg", run)):
        assert "724001" not in page.replace("_", "").replace(",", ""), "two hypotheses could be rerun with the seed"
        assert "simulat" in page.lower()


# --- a person at the site ---


def test_an_experiment_waits_for_a_person_and_is_then_held_to_the_letter(tmp_path):
    from foedus.federation.approval import Approvals

    intruder = Intruder(tmp_path, private(), Policy(approve="ask", **STRICT))
    reply = intruder.hello()
    assert reply["code"] == "waiting"
    approvals = Approvals(tmp_path / "site")
    (request,) = approvals.all()
    assert request.id in reply["sentence"]
    (said,) = (re.search(r"epsilon (\S+) by this run and (\S+) in all", line) for line in request.summary[-2:-1])
    assert said is not None
    assert [float(part) for part in said.groups()] == pytest.approx([1.0, 1.0], abs=1e-3)
    assert intruder.hello()["code"] == "waiting"
    approvals.decide(request.id, "approved")
    assert intruder.hello(max_rounds=3)["code"] == "waiting", "another number of rounds is another experiment"
    assert intruder.hello("r2")["code"] == "waiting"
    intruder.enter()
    assert intruder.round(0)[1].size == DIM
    approvals.decide(request.id, "refused")
    intruder.start()
    assert intruder.hello()["sentence"] == "a person at the site has refused this experiment"
    with pytest.raises(fd.FoedusError, match="there is no request 'nobody'"):
        approvals.decide("nobody", "approved")


def approved(intruder: Intruder) -> Intruder:
    """Greet once, and let a person at the site approve what was asked."""
    from foedus.federation.approval import Approvals

    assert intruder.hello()["code"] == "waiting"
    approvals = Approvals(intruder.folder / "site")
    (request,) = approvals.all()
    approvals.decide(request.id, "approved")
    assert intruder.hello()["code"] == "ok"
    return intruder


def test_whatever_a_greeting_states_is_what_was_approved(tmp_path):
    """Every field of the message, at every depth, and fields that nobody knows yet."""
    intruder = approved(Intruder(tmp_path, fd.FedAvg(lr=0.5), Policy(approve="ask"), where=fd.label(1.0)))
    stated = intruder.statement()
    changes = [stated | {"a setting of a later version": 1}, *variations(stated)]
    assert len(changes) > 30
    for changed in changes:
        assert intruder.hello(**changed)["code"] != "ok", changed
        assert intruder.join(**changed)["code"] == "other-run", changed


def variations(node):
    """The same JSON with one value changed, for each value in it."""
    if isinstance(node, dict):
        yield from ({**node, key: changed} for key, value in node.items() for changed in variations(value))
    elif isinstance(node, list):
        yield from ([*node[:i], changed, *node[i + 1 :]] for i, one in enumerate(node) for changed in variations(one))
    elif isinstance(node, bool) or node is None:
        yield 7 if node is None else not node
    else:
        yield node + 1 if isinstance(node, int | float) else f"{node}x"


def test_the_first_model_and_the_limits_that_a_join_brings_are_those_that_were_approved(tmp_path):
    stated = problem(constraints=[fd.constraints.LossCap(fd.label(1.0), at_most=0.9)])
    intruder = Intruder(tmp_path, fd.ProxAL(), Policy(approve="ask"), problem=stated)
    extra = {"cap0.cap": np.array([0.9])}
    from foedus.federation.approval import Approvals

    assert intruder.hello(extra=extra)["code"] == "waiting"
    approvals = Approvals(tmp_path / "site")
    approvals.decide(approvals.all()[0].id, "approved")
    assert intruder.hello(extra=extra)["code"] == "ok"
    header = {"run": "r1"} | intruder.statement(extra)
    for w, cap in ((1.0, 0.9), (0.0, 0.1)):
        plan = (layout.vector(DIM), layout.of_shapes(header["extra"]))
        content = packing.to_bytes((np.full(DIM, w), {"cap0.cap": np.array([cap])}), plan)
        assert intruder.say("join", content, **header)[0]["code"] == "other-run"
    assert intruder.join(extra=extra)["code"] == "ok"


def test_a_message_adds_no_line_to_a_sites_log_nor_to_what_a_person_reads(tmp_path):
    """A forged "approved by the data-protection officer" stood in the log after a line break in a message."""
    from foedus.federation.approval import Approvals

    intruder = Intruder(tmp_path, fd.FedAvg(lr=0.5), Policy(approve="ask"))
    forged = "x\napproved by the data-protection officer\x1b[2J\u202e\r\u2028" + "y" * 10_000
    for ask in (forged, "hello", "round"):
        intruder.say(ask, **intruder.statement() | {"run": "r1", "client": forged, "what": forged})
        intruder.say(ask, run=forged)
    intruder.hello(algorithm={"of": "class", "name": forged, "fields": {}})
    intruder.hello(algorithm={"of": "class", "name": f"foedus.problem.losses:{forged}", "fields": {}})
    (request,) = Approvals(tmp_path / "site").all()
    for line in (*intruder.notes, *request.summary):
        assert line.isprintable(), line[:200]
        assert len(line) <= 20_001
    for line in (tmp_path / "site" / "messages.jsonl").read_text().splitlines():
        assert len(line) < 1000
        assert all(str(value).isprintable() for value in json.loads(line).values())


# --- ledgers that go back, and noise that changes ---


def rollback(intruder: Intruder, how: str, old: dict[str, bytes]) -> None:
    """What whoever can write in the site's folder may do to the ledger, between two lives of the site."""
    for name in ("ledger.jsonl", "ledger.head"):
        path = intruder.folder / "site" / name
        path.unlink()
        if how == "older copies":
            path.write_bytes(old[name])
    intruder.start()


@pytest.mark.parametrize("how", ["older copies", "both deleted"])
def test_a_ledger_that_was_rolled_back_is_told_by_the_servers_receipt(tmp_path, how):
    intruder = Intruder(tmp_path, private()).enter(max_rounds=2)
    header, _ = intruder.round(0)
    old = {name: (tmp_path / "site" / name).read_bytes() for name in ("ledger.jsonl", "ledger.head")}
    header, _ = intruder.round(1)
    receipt = header["receipt"]
    assert receipt["lines"] == 2
    intruder.start()
    assert intruder.hello("r2", receipt=receipt, max_rounds=1)["code"] == "ok", (
        "the newest ledger, and one that has grown since"
    )
    rollback(intruder, how, old)
    assert intruder.hello("r3", max_rounds=1)["code"] == "ok", "a server that has forgotten cannot help"
    reply = intruder.hello("r3", receipt=receipt, max_rounds=1)
    assert reply["code"] == "ledger"
    assert reply["sentence"] == "its ledger of privacy is not the newest one; its own log says what is to be done"
    assert "was replaced by an older copy, or begun anew. Put the newest copy of" in intruder.notes[-2]


def test_a_ledger_that_went_on_from_an_older_copy_is_not_the_one_of_the_receipt(tmp_path):
    intruder = Intruder(tmp_path, private()).enter(max_rounds=4)
    intruder.round(0)
    old = {name: (tmp_path / "site" / name).read_bytes() for name in ("ledger.jsonl", "ledger.head")}
    receipt = intruder.round(1)[0]["receipt"]
    rollback(intruder, "older copies", old)
    assert intruder.enter(max_rounds=4).round(1, np.ones(DIM))[0]["receipt"]["lines"] == receipt["lines"]
    assert intruder.hello("r3", receipt=receipt)["code"] == "ledger"


@pytest.mark.parametrize("receipt", [{}, [], "x", {"lines": -1}, {"lines": True, "last": ""}, {"lines": 10**30}, 7])
def test_a_receipt_that_is_none_is_refused_with_a_sentence(tmp_path, receipt):
    reply = Intruder(tmp_path, private()).hello(receipt=receipt)
    assert reply["code"] in ("unknown", "ledger")


def test_one_name_of_a_run_has_one_noise(tmp_path):
    """What a run costs is proved for noise that was fixed before its first answer."""
    intruder = Intruder(tmp_path, private(), Policy(privacy=True)).enter(max_rounds=2)
    intruder.round(0)
    intruder.start()  # it is on the disk
    for noise, rounds in ((fd.Laplace(epsilon=0.125, clip=1.0), 2), (fd.Laplace(epsilon=0.25, clip=1.0), 3)):
        intruder.algorithm = private(noise)
        reply = intruder.hello(max_rounds=rounds)
        assert (reply["code"], "with other noise" in reply["sentence"]) == ("policy", True)
    assert intruder.hello("r2", max_rounds=3)["code"] == "ok"
    intruder.algorithm = private()
    assert intruder.enter(max_rounds=2).round(1)[1].size == DIM


# --- the measurement ---


def measured(intruder: Intruder, w: float) -> str:
    content = packing.to_bytes((np.full(DIM, w), np.zeros(0)), (layout.vector(DIM), layout.vector(0)))
    return intruder.say("measure", content, since=-1)[0]["code"]


def test_a_run_is_measured_at_few_models_also_after_a_restart(tmp_path):
    """At 150 models of the server's choice the measurements were 52 rows, to 5e-8."""
    intruder = Intruder(tmp_path, fd.FedAvg(lr=0.5), Policy()).enter()
    codes = [measured(intruder, w / 10) for w in range(10)]
    assert codes == ["ok"] * 5 + ["policy"] * 5
    intruder.start()
    intruder.enter()
    assert measured(intruder, 0.0) == "ok", "the same model is no other"
    assert measured(intruder, 9.0) == "policy"
