"""Dividing a data set among clients."""

import numpy as np
import pytest
from cases import properties
from hypothesis import given
from hypothesis import strategies as st

import foedus as fd

X = np.arange(46.0).reshape(23, 2)
y = np.array([0.0] * 6 + [1.0] * 17)


@properties
@given(clients=st.integers(1, 23), seed=st.integers(0, 5), by=st.sampled_from([None, "label"]))
def test_every_row_goes_to_one_client_with_its_label(clients, seed, by):
    sites = fd.data.split(X, y, clients=clients, seed=seed, by=by)
    sizes = [len(part[0]) for part in sites.values()]
    assert len(sites) == clients
    assert max(sizes) - min(sizes) <= 1
    rows = np.concatenate([np.column_stack(part) for part in sites.values()])
    np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], np.column_stack([X, y]))
    if by == "label":
        for value in (0.0, 1.0):
            held = [int(np.sum(labels == value)) for _, labels in sites.values()]
            assert max(held) - min(held) <= 1


def test_the_seed_decides():
    def first(seed):
        return fd.data.split(X, y, clients=3, seed=seed)["site-0"][0]

    np.testing.assert_array_equal(first(4), first(4))
    assert not np.array_equal(first(4), first(5))


def test_groups_go_with_their_rows():
    sites = fd.data.split(X, y, X[:, 0] % 3, clients=4)
    assert all(np.array_equal(part[2], part[0][:, 0] % 3) for part in sites.values())
    assert fd.Problem(sites, loss=fd.losses.logistic).names == list(sites)


def test_names_sort_as_the_clients_are_numbered():
    assert list(fd.data.split(X, y, clients=12)) == sorted(fd.data.split(X, y, clients=12))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clients": 0}, r"'clients' argument of split must be in \[1, 23\].*Got 0"),
        ({"clients": 24}, "Got 24"),
        ({"clients": 2.5}, "Got 2.5"),
        ({"clients": 3, "by": "rows"}, "'by' argument of split must be None or 'label'. Got 'rows'"),
        ({"clients": 3, "y": y[:-1]}, r"y .*22"),
        ({"clients": 3, "group": y[:-1]}, r"group .*22"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(arguments, words):
    with pytest.raises(fd.FoedusError, match=words):
        fd.data.split(**({"X": X, "y": y} | arguments))
