"""Data sets by name."""

import urllib.error

import numpy as np
import pytest

from foedus.base.errors import FoedusError
from foedus.data import loaders
from foedus.data.columns import Words

ROWS = {"breast-cancer": 569, "iris": 150, "wine": 178, "digits": 1797, "diabetes": 442, "monks-1": 432}


@pytest.mark.parametrize("name", ROWS)
def test_sets_that_need_no_file(name: str):
    table, known = loaders.load(name), loaders.data_set(name)
    assert table.rows == ROWS[name]
    label = table.columns[known.label]
    if known.positive is not None and isinstance(label, Words):
        assert known.positive in label.levels


def test_monks_1_is_the_rule_it_is_defined_by():
    columns = loaders.load("monks-1").columns
    a1, a2, a5 = (columns[name] for name in ("a1", "a2", "a5"))
    np.testing.assert_array_equal(columns["class"], (a1 == a2) | (a5 == 1))  # pyright: ignore


def test_a_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FOEDUS_DATA", raising=False)
    with pytest.raises(FoedusError, match="FOEDUS_DATA is not set"):
        loaders.load("adult")


def test_an_unknown_set():
    with pytest.raises(FoedusError, match="Did you mean 'digits'"):
        loaders.load("digit")


def test_openml_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path):
    def offline(**_: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
    with pytest.raises(FoedusError, match=r"'credit-g' of OpenML is not in the cache .*no route to host"):
        loaders.load("openml:credit-g")


def test_openml_columns_become_numbers_and_words(monkeypatch: pytest.MonkeyPatch):
    from sklearn.utils import Bunch

    fetched = Bunch(
        data=np.array([[1.5, 0.0], [2.5, np.nan], [0.5, 1.0]]),
        feature_names=["size", "colour"],
        categories={"colour": ["blue", "red"]},
        target=np.array(["good", "bad", "good"]),
        target_names=["credit"],
    )
    asked = {}

    def fetch(**arguments: object) -> Bunch:
        asked.update(arguments)
        return fetched

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    table = loaders.load("openml:credit-g@1")
    assert (asked["name"], asked["version"]) == ("credit-g", 1)
    colour = table.columns["colour"]
    assert isinstance(colour, Words)
    assert colour == Words(colour.codes, ("blue", "red"))
    np.testing.assert_array_equal(colour.codes, [0, -1, 1])
    np.testing.assert_array_equal(table.columns["size"], [1.5, 2.5, 0.5])  # pyright: ignore
    assert loaders.data_set("openml:credit-g@1").label == "credit"
