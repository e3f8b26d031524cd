"""The set of the first example is scikit-learn's, read without importing it."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

import foedus as fd


@pytest.mark.parametrize("place", ["datasets/data/breast_cancer.csv", "datasets/data/moved.csv"])
def test_it_is_scikit_learns_set_wherever_its_file_lies(monkeypatch, place):
    monkeypatch.setattr(import_module("foedus.data.loaders"), "PLACE", place)
    X, benign = load_breast_cancer(return_X_y=True)
    raw, malignant = fd.data.breast_cancer(scaled=False)
    np.testing.assert_array_equal(raw, X)
    np.testing.assert_array_equal(malignant, 1 - benign)
    np.testing.assert_allclose(fd.data.breast_cancer()[0], scale(X), atol=1e-10)


def test_scikit_learn_is_not_imported_for_it():
    assert find_spec("sklearn") is not None
    code = "import sys, foedus as fd; fd.data.breast_cancer(); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
