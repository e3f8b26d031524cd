"""InteriorPoint over sessions of server and sites plays the simulator's rounds, whoever is missing."""

import numpy as np
import pytest
from constrained_cases import Coupled, breast_cancer
from halls import Hall, agree

import foedus as fd

POINT = fd.InteriorPoint()


@pytest.mark.parametrize(
    "told",
    [{}, pytest.param({"participation": fd.Fraction(0.7, dropout=0.2)}, marks=pytest.mark.slow)],
    ids=["all", "some"],
)
def test_the_certified_answer_is_the_simulators(tmp_path, told):
    case = breast_cancer()
    run = fd.solve(case.problem(), POINT, **told)
    result = Hall(tmp_path, case.problem(), POINT, **told).play()
    agree(run, result)
    assert result.conclusion.certificate.holds(1e-6, 1e-6)


@pytest.mark.slow
def test_own_objectives_and_every_scope_of_constraint(tmp_path):
    problem, w0 = Coupled.random(0).problem(), np.zeros(6)
    agree(fd.solve(problem, POINT, w0=w0), Hall(tmp_path, problem, POINT, w0=w0).play())
