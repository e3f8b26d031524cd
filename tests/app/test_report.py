"""The report, the model card and the page that follows a job: whole, escaped, small, fast, and true to the run."""

import dataclasses
import json
import re
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import runs
from page_reader import Reader

import foedus as fd
from foedus.app import cli
from foedus.app.report import card, charts, html, sections, tradeoff, watch, words
from foedus.app.report.render import piece
from foedus.app.report.watch import serve
from foedus.base.pytrees import state
from foedus.base.settings import settings
from foedus.certificate.measure import Certificate, Row
from foedus.privacy.ledger import Ledger
from foedus.protocol.algorithm import Algorithm
from foedus.robust.stress import Stress
from foedus.robust.worst_case import WorstCase


def page_of(run, **asked) -> Reader:
    reader = Reader(html.page({"tumours": run}, asked))
    assert reader.open == []
    return reader


def test_page_of_a_certified_run_has_every_part():
    run = runs.certified()
    assert words.uncertified(run) is None
    page = page_of(
        run, title="Ward <4>", words="few misses", command="foedus run a.toml", warnings=["rows were dropped"]
    )
    for key in ("asked", "terms", "convergence", "sites", "settings", "words"):
        assert key in page.ids
    for said in ("Certified", "Ward <4>", "few misses", "foedus run a.toml", "rows were dropped", "Keep in mind"):
        assert said in page.text
    assert "loss on label 1 at most 0.5, at every site" in page.text
    for row in run.certificate.rows:
        assert row.site in page.text
        assert words.number(row.value) in page.text
        assert words.number(row.multiplier) in page.text
    assert f"All 3 sites answered in each of {run.rounds} rounds" in page.text
    assert page.tags.count("figure") % 2 == 0
    assert page.tags.count("figure") >= 6  # objective, violation, optimality; by rounds and by bytes
    for version in run.settings["versions"].values():
        assert version in page.text


def test_page_asks_nothing_of_the_network():
    text = html.page({"a": runs.certified()}, {})
    assert all(link.startswith("#") for link in Reader(text).links)
    assert not re.search(r"https?://|@import|url\(", text)


def test_names_are_escaped_everywhere():
    nasty = runs.NASTY
    for text in (
        html.page({nasty: runs.certified()}, {"title": nasty, nasty: nasty, "words": nasty, "command": nasty}),
        html.page({nasty: runs.certified(), nasty + "2": runs.infeasible()}, {"title": nasty}),
        html.page({nasty: runs.unconstrained()["FedAvg"]}, {}),
    ):
        reader = Reader(text)
        assert reader.open == []
        assert reader.tags.count("script") == 2  # the data and our own
        assert nasty in reader.text
        assert "<script>alert" not in text


def test_a_ledger_is_shown_and_escaped():
    run = runs.certified()
    assert "Privacy" not in page_of(run).text
    shape = (4, len(run.names))
    noise = {
        "words": "noise <b>",
        "sound": True,
        "kind": "Laplace",
        "neighbours": "replace",
        "epsilon": 0.5,
        "delta": 0.0,
    }
    ledger = Ledger(noise, tuple(run.names), (12, 12, 12), np.ones(shape), np.full(shape, 2.0), "parameters")
    spent = dataclasses.replace(run, ledger=ledger)
    page = page_of(spent)
    assert "privacy" in page.ids
    assert "noise <b>" in page.text
    assert words.number(ledger.total(0)) in page.text
    assert "not covered by the privacy guarantee" in page.text
    both = Reader(html.page({"a": spent, "b": run}, {}))
    assert "ε" in both.text
    assert words.number(ledger.total(0)) in both.text
    unsound = dataclasses.replace(ledger, noise=noise | {"sound": False})
    assert "noise <b>" in page_of(dataclasses.replace(run, ledger=unsound)).text


def test_what_private_sites_did_not_measure_is_said_in_words():
    plain = runs.unconstrained()["FedAvg"]
    certificate = Certificate.unmeasured(["north", "south"], len(plain.names), 1e-3, 1e-3)
    run = dataclasses.replace(plain, objective=np.nan, certificate=certificate)
    assert "objective not measured" in str(run)
    assert f"not measured at 2 of {len(run.names)} sites (north, south)" in str(run)
    assert not run.certificate.holds()
    for text in (page_of(run).text, card.card("tumours", run)):
        assert "sent no exact figure" in text
        assert not re.search(r"\bnan\b", text, re.IGNORECASE)
    both = Reader(html.page({"a": run, "b": plain}, {})).text
    assert "not measured" in both
    assert "not a number" not in both
    capped = dataclasses.replace(runs.certified(), objective=np.nan, certificate=certificate)
    text = page_of(capped).text
    assert "No constraints were set" not in text
    assert "LossCap, which was not measured" in text


def test_a_worst_case_is_shown_by_site():
    """As robust methods hand it over: its value, the weights q, and each site's own figures."""
    case = WorstCase(value=0.71, nominal=0.6, lam=1.0, radius=0.05)
    run = dataclasses.replace(runs.unconstrained()["FedAvg"])
    stress = Stress(0.77, dict.fromkeys(run.names, 0.25), dict.fromkeys(run.names, case), gap=0.0031)
    run.worst_case = stress
    page = page_of(run)
    assert "worst-case" in page.ids
    for figure in ("0.77", "0.71", "0.6", "0.25", "at most 0.0031 above the best possible worst case"):
        assert figure in page.text
    assert "No model has a worst case that is lower by more than 0.0031." in page.text
    run.worst_case = dataclasses.replace(stress, gap=None)
    assert "duality gap not measured" in page_of(run).text


def test_verdicts_say_what_the_certificate_says():
    assert words.verdict(runs.certified()).level == "good"
    broken = words.verdict(runs.infeasible())
    assert broken.level == "bad"
    assert broken.title == "Infeasible: these constraints cannot be met"
    worst = max(runs.infeasible().certificate.rows, key=lambda row: row.violation)
    assert worst.site in broken.sentences[0]
    assert any("Raise the cap" in text for text in broken.advice)
    run = runs.certified()
    far = dataclasses.replace(run, certificate=dataclasses.replace(run.certificate, stationarity=0.5))
    assert words.verdict(far).level == "fair"
    lost = dataclasses.replace(run, certificate=dataclasses.replace(run.certificate, stationarity=float("nan")))
    assert words.verdict(lost).level != "good"
    free = runs.unconstrained()["FedAvg"]
    near = dataclasses.replace(free, certificate=dataclasses.replace(free.certificate, stationarity=1e-5))
    assert words.verdict(near).title == "Stopped near the optimum"
    assert words.verdict(free).title == "Stopped before converging"
    assert words.verdict(dataclasses.replace(free, objective=float("nan"))).level == "bad"


def test_comparison_overlays_the_runs_and_names_the_best():
    both = runs.unconstrained()
    page = Reader(html.page(both, {}))
    assert page.open == []
    best = min(both, key=lambda name: both[name].objective)
    assert f"by {best}" in page.text
    for run in both.values():
        assert words.number(run.objective) in page.text
    assert "algorithm.name" in page.text
    assert "different problems" not in page.text
    moved = Reader(html.page(both, {"data_differ": True}))
    assert "are about different data" in moved.text
    assert "does best" not in moved.text


def test_different_problems_have_no_winner_and_show_their_own_terms():
    mixed = html.page({"a": runs.certified(), "b": runs.unconstrained()["FedAvg"]}, {})
    page = Reader(mixed)
    assert page.open == []
    assert 'class="hero open"' in mixed
    assert "Different problems, no winner" in page.text
    assert "best" not in page.text.partition("Constraints of each run")[0]
    own = mixed.partition('<section id="own">')[2].partition("</section>")[0]
    for run in (runs.certified(), runs.unconstrained()["FedAvg"]):
        assert words.objective(run) in Reader(own).text
    assert "loss on label 1 at most 0.5" in own
    assert "no constraints were set" in own
    assert 'class="curve"' not in mixed


def capped(at_most: float, method: fd.ProxAL | None = None) -> fd.Run:
    cap = fd.constraints.LossCap(fd.label(1), at_most=at_most)
    problem = fd.Problem(runs.sites(), loss=fd.losses.logistic, where=fd.label(0), constraints=[cap])
    return fd.solve(problem, method or fd.ProxAL(beta=30), seed=0)


def test_a_sweep_over_caps_is_a_curve_and_crowns_nobody():
    swept = {f"at_most={cap}": capped(cap) for cap in (0.6, 0.4, 0.5)}
    (curve,) = tradeoff.curves(swept)
    assert curve.nested
    ((name, points),) = curve.lines.items()
    assert name == ""
    assert [p.cap for p in points] == [0.4, 0.5, 0.6]
    assert [p.objective for p in points] == [swept[f"at_most={cap}"].objective for cap in (0.4, 0.5, 0.6)]
    text = html.page(swept, {})
    page = Reader(text)
    assert page.open == []
    assert "does best" not in page.text
    assert "A trade-off: the cap against the objective" in page.text
    assert text.count('<i class="dot c0"') == 3
    for cap in (0.4, 0.5, 0.6):
        assert f"loss on label 1 at most {cap}" in page.text
    # a run that is not certified is drawn hollow
    broken = dataclasses.replace(
        swept["at_most=0.4"], certificate=dataclasses.replace(swept["at_most=0.4"].certificate, stationarity=0.5)
    )
    text = html.page(swept | {"at_most=0.4": broken}, {})
    assert text.count('<i class="dot c0 open"') == 1
    assert "Not certified: at_most=0.4." in Reader(text).text


def test_caps_and_methods_swept_together_give_a_line_for_each_method():
    swept = {f"{cap} {beta}": capped(cap, fd.ProxAL(beta=beta)) for cap in (0.4, 0.5) for beta in (10, 30)}
    (curve,) = tradeoff.curves(swept)
    assert list(curve.lines) == ["beta 10", "beta 30"]
    assert all([p.cap for p in line] == [0.4, 0.5] for line in curve.lines.values())


def test_a_slack_within_the_tolerance_is_at_its_cap_and_the_legend_says_so():
    run = runs.certified()
    for value, badge in ((0.5 + 1.7e-6, "binding"), (0.5 - 1.7e-6, "binding"), (0.502, "broken"), (0.4, "met")):
        for multiplier in (0.0, 0.3):
            row = Row("north", "loss on label 1", "<=", value, 0.5, multiplier)
            certificate = dataclasses.replace(run.certificate, rows=(row,), eps2=1e-3)
            text = html.page({"a": dataclasses.replace(run, certificate=certificate)}, {})
            assert f'<span class="badge {badge}">' in text, (value, multiplier)
    page = Reader(text)
    assert "between −0.001 and 0.001, the certificate's tolerance, reads 'binding'" in page.text
    assert "below −0.001 the constraint is violated" in page.text
    assert "Negative slack means" not in page.text


@pytest.mark.slow
def test_large_run_is_written_small_and_fast(tmp_path: Path):
    run = runs.large()
    html.page({"first": dataclasses.replace(run, rounds=run.rounds)}, {})  # compiles the draws of who took part
    began = time.process_time()  # of this process alone: others may be busy
    path = html.write({"clinics": run}, tmp_path / "report.html", {})
    assert time.process_time() - began < 2.0
    assert path.stat().st_size < 3e6
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    page = Reader(path.read_text(encoding="utf-8"))
    assert page.text.count("clinic-") >= 100


@pytest.mark.slow
def test_a_sweep_of_many_runs_stays_small():
    run = runs.large()
    everyone = {k: v for k, v in run.settings.items() if k != "participation"}
    many = {f"seed {k}": dataclasses.replace(run, settings=everyone | {"seed": k}) for k in range(30)}
    text = html.page(many, {})
    assert len(text.encode()) < 3e6
    page = Reader(text)
    assert page.open == []
    assert "seed 29" in page.text
    assert "Least slack" in page.text


def test_more_rows_than_a_page_holds_are_cut_to_the_tightest():
    run = runs.certified()
    rows = tuple(Row(f"clinic-{i}", "loss", "<=", 0.1 + i / 7000, 0.2, 0.0) for i in range(700))
    page = page_of(dataclasses.replace(run, certificate=dataclasses.replace(run.certificate, rows=rows)))
    assert "Of 700 constraints, the 500 with the least slack" in page.text
    assert "clinic-699" in page.text
    assert "clinic-199 " not in page.text


@pytest.mark.parametrize("n", [1, 5, 1200, 1201, 50_000])
def test_thinning_keeps_ends_and_extremes(n: int):
    y = np.random.default_rng(n).normal(size=n)
    y[n // 2] = np.nan
    kept = charts.thin(y)
    assert len(kept) <= charts.POINTS + 8
    assert kept[0] == 0
    assert kept[-1] == n - 1
    if n > 1:
        assert np.nanmin(y[kept]) == np.nanmin(y)
        assert np.nanmax(y[kept]) == np.nanmax(y)


@pytest.mark.parametrize(
    "values", [[0.0], [1.0, 1.0], [-3.0, 4.0], [1e-9, 1e3], [np.nan, np.inf], [0.0, 1e-300], [5.0, 5.1]]
)
def test_axes_hold_their_values_and_have_labels(values: list[float]):
    y = np.array(values)
    chart = charts.Chart("a", "A", "", (charts.ChartSeries("s", y, np.arange(len(y))),))
    axis = charts.axis_of(y, chart.log)
    finite = y[np.isfinite(y)]
    placed = axis.place(finite)
    assert np.all((placed >= -1e-9) & (placed <= 1 + 1e-9))
    assert axis.ticks()
    for by in ("rounds", "bytes"):
        drawing = piece("plot", charts.line_chart(chart, by))
        assert Reader(drawing).open == []
        assert "nan" not in drawing.split("aria-label")[0]


PLAN = np.random.default_rng(0).random((7, 6)) < 0.4


@pytest.mark.parametrize(
    ("who", "named"),
    [
        (fd.Fraction(0.5, dropout=0.3), True),
        pytest.param(fd.Schedule(PLAN, dropout=0.2), False, marks=pytest.mark.slow),
        pytest.param(fd.Coverage(0.4, dropout=0.2, every=3), True, marks=pytest.mark.slow),
    ],
)
def test_who_took_part_is_who_was_heard(who, named: bool):
    """The draws repeated for the report are the run's own: an algorithm that counts its callers agrees."""

    @state
    class Counts:
        w: jnp.ndarray

    @settings
    class Roll(Algorithm):
        def init(self, terms, w0, own):
            return Counts(w0)

        def broadcast(self, terms, server, draws):
            return server.w

        def local(self, terms, client, message, data, key):
            return client, jnp.ones(())

        def aggregate(self, terms, server, replies, present):
            return Counts(server.w.at[present.index].add(jnp.where(present.here, replies, 0.0), mode="drop"))

    def nothing(w, data):
        return 0.0 * jnp.sum(w)

    clients = {name: {"y": np.zeros(1)} for name in "abcdef"}
    problem = fd.Problem(clients if named else list(clients.values()), objective=nothing)
    run = fd.solve(problem, Roll(), w0=np.zeros(6), max_rounds=40, participation=who, seed=5)
    found = sections.presence(run)
    assert found is not None
    np.testing.assert_array_equal(found[1].sum(axis=0), run.w)
    np.testing.assert_array_equal(found[0].sum(axis=1), run.history["asked"])
    forged = dataclasses.replace(run, history=run.history | {"answered": run.history["answered"] + 1})
    assert sections.presence(forged) is None


def test_page_tells_who_took_part():
    run = runs.unconstrained()["FedAvg"]
    page = page_of(run)
    assert "of 3 sites answered a round" in page.text
    assert "replies were lost" in page.text
    text = html.page({"a": run}, {})
    assert 'class="attendance"' in text
    assert 'class="lost"' in text


def test_card_holds_the_certificate_and_its_limits():
    run = runs.certified()
    text = card.card("tumours", run, {"title": "Ward | 4"})
    assert text.startswith("# Model card: Ward \\| 4\n")
    for row in run.certificate.rows:
        assert f"{words.number(row.value)} | {words.number(row.cap)}" in text
    for part in ("## Certificate", "## Privacy", "## Limits", "No privacy mechanism", "fd.ProxAL("):
        assert part in text
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "No constraints were set" in card.card("a", runs.unconstrained()["Scaffold"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one finished run in it."""
    runs.certified().save(tmp_path / "good")
    return tmp_path


def test_commands_write_report_and_card(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "good" / "asked.json").write_text(json.dumps({"title": "From the folder"}))
    runs.infeasible().save(folder / "other" / "good")
    assert cli.run(["report", str(folder / "good")]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "good" / "report.html")
    assert "From the folder" in (folder / "good" / "report.html").read_text(encoding="utf-8")
    (folder / "good" / "asked.json").unlink()
    told = {
        "name": "ward",
        "file": "ward.toml",
        "sites": {"a": 7, "b": 5},
        "dropped_rows": {"b": 2},
        "features": ["age"],
    }
    (folder / "good" / "experiment.json").write_text(json.dumps(told))
    assert cli.run(["report", str(folder / "good")]) == 0
    text = Reader((folder / "good" / "report.html").read_text(encoding="utf-8")).text
    for said in ("foedus run ward.toml", "12 rows at 2 sites", "left out: 2 at b"):
        assert said in text
    both = [str(folder / "good"), str(folder / "other" / "good")]
    assert cli.run(["report", *both, "--out", str(folder / "new" / "both.html")]) == 0
    assert "other/good" in (folder / "new" / "both.html").read_text(encoding="utf-8")
    assert cli.run(["card", str(folder / "good")]) == 0
    assert (folder / "good" / "card.md").read_text(encoding="utf-8").startswith("# Model card: ward")
    capsys.readouterr()
    assert cli.run(["card", str(folder / "good"), "--out", "-"]) == 0
    assert capsys.readouterr().out.startswith("# Model card")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "goood"], ["goood", "Did you mean 'good'?"]),
        (["card", "nowhere/at-all"], ["nowhere/at-all"]),
        (["watch", "goood"], ["goood", "Did you mean 'good'?"]),
        (["report", "file"], ["file is a file", "run folder"]),
        (["report", "empty"], ["empty is not a run folder", "run.json"]),
        (["report", "good", "--out", "empty"], ["--out empty is a folder"]),
        (["card", "good", "--out", "missing/card.md"], ["missing/card.md", "folder that exists"]),
        (["report", "broken"], ["asked.json cannot be read"]),
    ],
)
def test_wrong_folders_get_one_sentence(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: list[str],
):
    monkeypatch.chdir(folder)
    Path("file").write_text("a file")
    Path("empty").mkdir()
    runs.certified().save("broken")
    Path("broken/asked.json").write_text("{")
    before = sorted(str(p) for p in folder.rglob("*"))
    assert cli.run(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for part in said:
        assert part in error
    assert sorted(str(p) for p in folder.rglob("*")) == before


def test_watch_follows_a_job_and_becomes_its_report(tmp_path: Path):
    job = tmp_path / "job"
    job.mkdir()
    server = serve(job)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"

    def get(path: str, host: str | None = None) -> str:
        asked = urllib.request.Request(address + path, headers={"Host": host} if host else {})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.read().decode()

    try:
        assert "Waiting" in get("/")
        assert get("/pulse") == "waiting"
        problem = fd.Problem(runs.sites(), loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1, per_example=False))
        run = fd.solve(problem, fd.Scaffold(lr=0.2), seed=0, max_rounds=30, checkpoint=job / "run.ckpt")
        (job / "events.jsonl").write_text('{"event": "start", "max_rounds": 120}\n{"event": "rou')
        assert get("/pulse").startswith("running-")
        page = Reader(get("/"))
        assert page.open == []
        assert "Running" in page.text
        assert "Round 30." in page.text
        assert "of at most 120" in page.text
        assert words.number(float(run.history["objective"][-1])) in page.text
        run.save(job)
        assert get("/pulse").startswith("done-")
        assert words.verdict(run).title in Reader(get("/")).text
        for path, host, status in (
            ("/run.json", None, 404),
            ("/../job/run.json", None, 404),
            ("/", "evil.example", 403),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(path, host)
            assert refused.value.code == status
            refused.value.close()
        (job / "run.json").write_text("{")
        assert "Nothing to show" in get("/")
    finally:
        server.shutdown()
        server.server_close()


def test_watch_reads_a_checkpoint_by_its_own_name(tmp_path: Path):
    file = tmp_path / "run.ckpt"
    problem = fd.Problem(runs.sites(), loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1, per_example=False))
    fd.solve(problem, fd.Scaffold(lr=0.2), seed=0, max_rounds=30, checkpoint=file)
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    assert watch.look(file).source == file
    assert watch.look(tmp_path).source == file
    assert len(watch.history_of(file)["objective"]) == 30
