"""The report in a real browser: it is drawn without errors at any width, in both colour schemes, and reacts."""

import html as text
import io
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import runs
from markupsafe import Markup
from private_reports import BROKEN, KEPT, UNTOLD, measured

import foedus as fd
from foedus.app.report import html, operator, watch, words
from foedus.app.report.watch import serve
from foedus.federation.flare.console import JobStatus

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine; make test-browser installs it"),
]


def browse(tmp_path: Path, page: str, *flags: str) -> str:
    """Open a page headlessly with these flags, and return the document as it is after its scripts ran."""
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    return opened(tmp_path, file.as_uri(), *flags)


def opened(tmp_path: Path, address: str, *flags: str) -> str:
    """Open an address headlessly, and return what the browser prints."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [str(CHROMIUM), "--headless", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", *sandbox]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", *flags, address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def asked_of(tmp_path: Path, page: str, question: str, *flags: str) -> object:
    """What a piece of JavaScript, run in the page when it has loaded, returns."""
    spy = (
        "<script>var errors = []; window.addEventListener('error', e => errors.push(e.message));</script>",
        "<script>window.addEventListener('load', () => { var p = document.createElement('pre'); p.id = 'answer';"
        f"try {{ p.textContent = JSON.stringify((function () {{ {question} }})()); }}"
        "catch (e) { p.textContent = JSON.stringify('threw ' + e); } document.body.appendChild(p); });</script>",
    )
    page = page.replace("</head>", spy[0] + "</head>", 1).replace("</body>", spy[1] + "</body>", 1)
    found = re.search(r'<pre id="answer">(.*?)</pre>', browse(tmp_path, page, "--dump-dom", *flags), re.DOTALL)
    assert found, "the page did not finish loading"
    return json.loads(text.unescape(found[1]))


@pytest.fixture(scope="module")
def one() -> str:
    return html.page({"tumours": runs.certified()}, {})


@pytest.fixture(scope="module")
def both() -> str:
    return html.page(runs.unconstrained(), {})


def test_page_is_drawn_without_errors(tmp_path: Path, one: str):
    found = asked_of(
        tmp_path,
        one,
        "return {errors: errors, alive: document.body.classList.contains('live-script'),"
        "drawn: Array.from(document.querySelectorAll('#convergence > .charts .by-rounds .line'))"
        ".filter(p => p.getBBox().width > 100).length,"
        "hidden: Array.from(document.querySelectorAll('.by-bytes')).every(f => f.offsetHeight === 0),"
        "title: document.querySelector('h1').textContent};",
    )
    assert found == {
        "errors": [],
        "alive": True,
        "drawn": 3,
        "hidden": True,
        "title": "Certified in training, not measured on new rows",
    }


@pytest.fixture
def noisy() -> str:
    return html.page({"noisy": measured(KEPT, BROKEN, UNTOLD)}, {})


@pytest.mark.parametrize("width", [390, 800, 1400])
@pytest.mark.parametrize("kind", ["one", "both", "noisy"])
def test_no_width_scrolls_sideways(tmp_path: Path, width: int, kind: str, request: pytest.FixtureRequest):
    page = request.getfixturevalue(kind)
    frame = f'<iframe id="f" style="width:{width}px;height:3000px;border:0" srcdoc="{text.escape(page)}"></iframe>'
    outer = f"<!doctype html><html><head></head><body>{frame}</body></html>"
    found = asked_of(
        tmp_path,
        outer,
        "var d = document.getElementById('f').contentDocument;"
        "return [d.documentElement.scrollWidth, d.querySelectorAll('section').length];",
    )
    assert isinstance(found, list)
    assert found[0] <= width
    assert found[1] >= 5


def test_sites_are_sorted_found_and_filtered(tmp_path: Path):
    page = html.page({"clinics": runs.large(rounds=50)}, {})
    sites = sorted(runs.large(rounds=50).certificate.rows, key=lambda row: row.value)
    found = asked_of(
        tmp_path,
        page,
        "var t = document.querySelector('#terms table'), rows = () => Array.from(t.tBodies[0].rows)"
        ".filter(r => r.offsetHeight > 0).map(r => r.cells[0].textContent);"
        "var head = Array.from(t.tHead.rows[0].cells).find(c => c.textContent === 'Value');"
        "head.click(); var up = rows(); head.click(); var down = rows();"
        "var box = document.querySelector('.find input'); box.value = '042'; box.dispatchEvent(new Event('input'));"
        "var named = rows(); box.value = ''; box.dispatchEvent(new Event('input'));"
        "document.querySelector('[data-only=binding]').click(); var binding = rows();"
        "return [up[0], down.length, named, binding.length, errors];",
    )
    binding = sum(row.slack <= 1e-3 for row in sites)  # within the tolerance of the certificate
    assert found == [sites[0].site, 100, ["clinic-042"], binding, []]


def test_series_can_be_hidden_zoomed_and_read(tmp_path: Path, both: str):
    found = asked_of(
        tmp_path,
        both,
        "var f = document.querySelector('.chart.by-rounds'), a = f.querySelector('.area');"
        "var b = a.getBoundingClientRect(), at = (kind, p) => a.dispatchEvent(new PointerEvent(kind, "
        "{clientX: b.left + p * b.width, clientY: b.top + 20, bubbles: true, pointerType: 'mouse'}));"
        "var line = f.querySelector('.line'), before = line.getAttribute('d');"
        "at('pointermove', 0.5); var tip = f.querySelector('.tip').textContent;"
        "at('pointerdown', 0.2); at('pointermove', 0.6); at('pointerup', 0.6); var zoomed = line.getAttribute('d');"
        "a.dispatchEvent(new MouseEvent('dblclick')); var back = line.getAttribute('d');"
        "document.querySelector('[data-toggle=FedAvg]').click();"
        "var off = document.querySelectorAll('.line.off').length;"
        "return {tip: tip, zoomed: zoomed !== before, back: back !== zoomed, off: off, errors: errors};",
    )
    assert isinstance(found, dict)
    assert "round 1" in found["tip"]
    assert "FedAvg" in found["tip"]
    assert "Scaffold" in found["tip"]
    assert found["zoomed"]
    assert found["back"]
    assert found["off"] >= 2  # by rounds and by bytes
    assert found["errors"] == []


def test_page_is_whole_without_javascript(tmp_path: Path, one: str):
    frame = f'<iframe id="f" sandbox="allow-same-origin" style="width:800px" srcdoc="{text.escape(one)}"></iframe>'
    found = asked_of(
        tmp_path,
        f"<!doctype html><html><head></head><body>{frame}</body></html>",
        "var d = document.getElementById('f').contentDocument, seen = e => e.getBoundingClientRect().height > 0;"
        "return {alive: d.body.classList.contains('live-script'),"
        "script: Array.from(d.querySelectorAll('.script')).some(seen),"
        "lines: Array.from(d.querySelectorAll('#convergence > .charts .by-rounds svg')).filter(seen).length,"
        "rows: Array.from(d.querySelectorAll('#terms tbody tr')).filter(seen).length};",
    )
    assert found == {"alive": False, "script": False, "lines": 3, "rows": 3}


def picture(tmp_path: Path, page: str, *flags: str) -> np.ndarray:
    from PIL import Image

    file = tmp_path / "shot.png"
    browse(tmp_path, page, f"--screenshot={file}", "--window-size=800,1200", *flags)
    return np.asarray(Image.open(io.BytesIO(file.read_bytes())).convert("L"), dtype=float)


def test_dark_is_dark_and_light_is_light(tmp_path: Path, one: str):
    light = picture(tmp_path, one, "--blink-settings=preferredColorScheme=1")
    dark = picture(tmp_path, one, "--blink-settings=preferredColorScheme=0")
    assert light.mean() > 200
    assert dark.mean() < 70
    for shot in (light, dark):
        assert shot.std() > 15  # there is something on it


def test_it_prints(tmp_path: Path, one: str):
    file = tmp_path / "report.pdf"
    browse(tmp_path, one, f"--print-to-pdf={file}", "--no-pdf-header-footer")
    content = file.read_bytes()
    assert content.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 6


def test_page_of_a_running_job_becomes_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The page asks for the pulse by itself, and comes again when the job has ended."""
    job = tmp_path / "job"
    job.mkdir()
    problem = fd.Problem(runs.sites(), loss=fd.losses.logistic)
    run = fd.solve(problem, fd.Scaffold(lr=0.2), seed=0, max_rounds=30, checkpoint=job / "run.ckpt")
    looks, look = [], watch.look

    def ended_at_the_second_look(folder: Path) -> watch.Sight:
        if len(looks) == 1:
            run.save(folder)
        looks.append(look(folder).stage)
        return look(folder)

    monkeypatch.setattr(watch, "look", ended_at_the_second_look)
    server = serve(job)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        dom = opened(tmp_path, f"http://127.0.0.1:{server.server_address[1]}/", "--dump-dom")
    finally:
        server.shutdown()
        server.server_close()
    assert looks[0] == "running"
    assert "done" in looks
    assert words.verdict(run).title in dom


def federation_page(sites: int = 4) -> str:
    """The page of a running federation, with a row for each site."""
    names = [f"clinic-{i}" for i in range(sites)]
    sight = {"replies": 40, "faults": 1, "bytes": 64000, "time": 0.0, "seconds": 0.21, "age": 0.4, "releases": None}
    run = {
        "run": "r1", "algorithm": "InteriorPoint", "clients": names, "max_rounds": 50, "stage": "rounds",
        "stage_seconds": 12.0, "rounds": 40, "record": {"objective": 0.2, "gap": 1e-3, "feasibility": 0.0},
        "at": [*range(1, 41)], "series": {key: [1.0 / k for k in range(1, 41)] for key in ("objective", "gap")},
        "sites": dict.fromkeys(names, sight), "waiting": names[:1], "refusals": [], "refusal_count": 0,
    }  # fmt: skip
    job = JobStatus("1234", "r1-aa", "running", "2026-11-18 10:00:00", "0:00:12")
    return operator.render(operator.Scene(0.0, names, [job], [run]))


def test_the_menu_of_a_page_with_every_section_fits_into_one_line_of_1280_pixels(tmp_path: Path):
    heads = (
        "New rows", "Constraints", "Constraints under noise", "Subgroups", "Cohort", "Problem", "Coefficients",
        "Convergence", "Participation", "Worst case", "Privacy", "Settings", "Glossary",
    )  # fmt: skip
    parts = [(f"part-{i}", head, Markup("<p>text</p>")) for i, head in enumerate(heads)]
    found = asked_of(
        tmp_path,
        html.assemble("page", words.Verdict("good", "Certified", ()), parts=parts),
        "var menu = document.querySelector('header nav'), links = Array.from(menu.querySelectorAll('a'));"
        "return {width: innerWidth, links: links.length, lines: new Set(links.map(a => a.offsetTop)).size,"
        "hidden: menu.scrollWidth - menu.clientWidth};",
        "--window-size=1280,900",
    )
    assert found == {"width": 1280, "links": 13, "lines": 1, "hidden": 0}


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_federation_is_drawn_without_errors_and_fits(tmp_path: Path, width: int):
    found = asked_of(
        tmp_path,
        federation_page().replace("</head>", f"<style>body {{ max-width: {width}px }}</style></head>", 1),
        "return {errors: errors, rows: document.querySelectorAll('#sites tbody tr').length,"
        "drawn: Array.from(document.querySelectorAll('.by-rounds .line')).filter(p => p.getBBox().width > 50).length,"
        "waits: document.querySelector('.hero').textContent.includes('waiting for clinic-0'),"
        "forms: document.querySelectorAll('form, button[type=submit]').length};",
    )
    assert isinstance(found, dict)
    assert found["errors"] == []
    assert found["rows"] == 4
    assert found["drawn"] >= 2
    assert found["waits"]
    assert found["forms"] == 0, "it only looks"
