"""Results in a notebook: the tables that `print` shows, as HTML with the same cells."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import foedus as fd
from foedus.base.notebook import html_of
from foedus.certificate.measure import Certificate
from foedus.privacy.ledger import Ledger
from foedus.runtime.progress import NotebookBar, ProgressBar, progress_bar

TEXT = """\
certificate: certified
site     constraint             value
-------------------------------------
a <b>    loss on label 1       0.1000
site-10  loss on group F − M  -0.2000
epsilon 1 in all"""


def test_a_printed_table_becomes_a_table_with_the_same_cells():
    html = html_of(TEXT)
    assert html.startswith("<div>certificate: certified</div><table>")
    assert "<tr><th>site</th><th>constraint</th><th>value</th></tr>" in html
    assert "<td>a &lt;b&gt;</td><td>loss on label 1</td><td>0.1000</td>" in html
    assert "<td>site-10</td><td>loss on group F − M</td><td>-0.2000</td>" in html
    assert html.endswith("</table><div>epsilon 1 in all</div>")


def test_runs_certificates_and_ledgers_have_an_html_form():
    sites = [(np.eye(2), np.array([1.0, 2.0]))]
    ball = [fd.constraints.NormBall(1.0)]
    run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares, constraints=ball), fd.InteriorPoint())
    assert run.certificate._repr_html_().count("<tr>") == 1 + len(run.certificate.rows) == 2
    assert "<table>" in run._repr_html_()
    assert all(hasattr(kind, "_repr_html_") for kind in (fd.Run, Certificate, Ledger))


CELL = """
import numpy as np
import foedus as fd
sites = [(np.eye(3), np.arange(3.0))]
run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedAvg(k0=1, lr=0.5), max_rounds=20, progress=True)
run
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the kernel's own libraries warn of each other
def test_a_notebook_shows_the_bar_and_the_run_as_a_table():
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(book, timeout=120).execute()
    outputs = book.cells[0].outputs
    assert not [one for one in outputs if one.output_type in ("error", "stream")]  # no warning, no escape sequences
    bar, run = (one["data"] for one in outputs)
    assert bar["text/html"].startswith('<div><progress value="20" max="20">')
    assert "FedAvg: round 20 of at most 20  objective" in bar["text/plain"]
    assert "FedAvg over 1 clients" in run["text/html"]


def test_a_bar_in_a_notebook_is_updated_and_keeps_its_last_state(monkeypatch):
    pictures = []
    handle = SimpleNamespace(update=lambda picture, raw: pictures.append(picture))

    def display(picture, raw, display_id):
        pictures.append(picture)
        return handle

    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    bar = progress_bar(10, "<A>")
    assert isinstance(bar, NotebookBar)
    for rounds in range(1, 6):
        bar.update(rounds, {"objective": 0.25, "other": 1.0})
    bar.close()
    assert pictures[0]["text/plain"] == "<A>: round 0 of at most 10  starting"
    assert pictures[-1]["text/plain"] == "<A>: round 5 of at most 10  objective 0.25"
    assert "&lt;A&gt;" in pictures[-1]["text/html"]
    assert len(pictures) < 6  # not one for every round


def test_a_terminal_gets_another_bar():
    bar = progress_bar(3, "A")
    bar.close()
    assert isinstance(bar, ProgressBar)
