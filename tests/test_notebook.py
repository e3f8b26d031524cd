"""Results in a notebook: the tables that `print` shows, as HTML with the same cells."""

import numpy as np

import foedus as fd
from foedus.certificate import Certificate
from foedus.notebook import html_of
from foedus.privacy.ledger import Ledger

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
