"""`fd.data.prepare` gives the numbers that pooled rows give, and one sentence for what is wrong."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import foedus as fd
from foedus.data.sums import ABSENT

NORTH = {"age": [30.0, 50.0, np.nan], "ward": ["a", "b", None], "sex": ["f", "m", "f"], "ill": [0, 1, 1]}
SOUTH = {"age": [40, 60, 70], "ward": ["b", "c", "a"], "sex": ["m", "f", "m"], "ill": [False, True, True]}


def test_scales_are_those_of_the_pooled_rows():
    draw = np.random.default_rng(0)
    tables = {name: draw.normal(3, 2, size=(rows, 2)) for name, rows in (("north", 40), ("south", 25))}
    columns = {n: {"a": t[:, 0], "b": t[:, 1], "y": np.arange(len(t)) % 2} for n, t in tables.items()}
    ready = fd.data.prepare(columns, label="y", intercept=False)
    pooled = StandardScaler().fit(np.concatenate(list(tables.values())))
    for name, table in tables.items():
        np.testing.assert_allclose(ready.sites[name][0], pooled.transform(table), atol=1e-12)
        np.testing.assert_allclose(ready.transform(columns[name]), pooled.transform(table), atol=1e-12)
    assert ready.rules.rounds == 1


def test_words_groups_and_missing_values_as_in_a_file():
    south = SOUTH | {"ill": [0, 1, 1]}
    ready = fd.data.prepare({"north": NORTH, "south": south}, label="ill", group="sex")
    X, y, group = ready.sites["north"]
    assert X[2, ready.names.index(f"ward={ABSENT}")] == 1.0  # a missing word is a category of its own
    assert X[2, 0] == pytest.approx(0.0)  # a missing age is the mean over all sites
    assert y.tolist() == [0.0, 1.0, 1.0]
    assert group.tolist() == [0.0, 1.0, 0.0]
    assert X.shape[1] == len(ready.names)


@pytest.mark.parametrize(
    ("sites", "options", "words"),
    [
        ({}, {}, "needs the sites' columns by site"),
        ({"north": [1, 2]}, {}, "site 'north': expected columns by name. Got list"),
        ({"north": NORTH | {"age": [1.0]}}, {}, "site 'north': the column '.*' has"),
        (
            {"north": NORTH | {"age": [1.0, np.inf, 2.0]}},
            {},
            "site 'north', row 1, column 'age': the number is infinite",
        ),
        ({"north": NORTH}, {"label": "il"}, "there is no column 'il'.*'ill'"),
        ({"north": NORTH}, {"scale": "none at all"}, "'scale' of prepare must be one of"),
        ({"north": NORTH}, {"missing": "zero"}, "'missing' of prepare must be"),
        ({"north": NORTH, "south": SOUTH}, {}, "values"),  # 0/1 at one site and truth values at the other
    ],
)
def test_a_mistake_gets_one_sentence(sites, options, words):
    with pytest.raises(fd.FoedusError, match=words) as caught:
        fd.data.prepare(sites, **{"label": "ill"} | options)
    assert "\n" not in str(caught.value)
