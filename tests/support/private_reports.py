"""Runs under privacy as reports show them."""

import math
from dataclasses import replace

import runs

from foedus.certificate.measure import Certificate
from foedus.certificate.private import PrivateCertificate, PrivateRow

KEPT = PrivateRow("north", "loss on label 1", 0.5, -0.0213, 0.0051, -0.0313, -0.0113, 0.4217, 0.3717, 0.4717, 0.1)


BROKEN = replace(KEPT, site=runs.NASTY, excess=0.0222, low=0.0122, high=0.0322, value=0.6117, value_high=0.6617)


UNTOLD = replace(
    KEPT, site="south", cap=0.6, low=-0.0414, high=0.0014, value=math.nan, value_low=-math.inf, value_high=math.inf
)


def measured(*rows: PrivateRow, silent: bool = True):
    """A run whose caps were measured under noise, and also exactly unless the sites are silent."""
    run = runs.certified()
    exact = run.certificate
    blank = Certificate.unmeasured(run.names, len(run.names), exact.eps1, exact.eps2) if silent else exact
    return replace(run, certificate=replace(blank, private=PrivateCertificate(rows, 0.95, 0.4321, 1e-5, 4.375)))
