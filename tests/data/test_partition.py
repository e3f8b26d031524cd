"""Dividing a data set among clients."""

from itertools import pairwise

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


METHODS = {
    "iid": {},
    "dirichlet": {"alpha": 1.0},
    "shards": {"num_shards_per_partition": 2},
    "power_law": {"alpha": 1.5},
    "by_column": {"partition_by": 1},
}


@properties
@given(method=st.sampled_from(sorted(METHODS)), number=st.integers(1, 5), seed=st.integers(0, 5))
def test_every_partitioner_gives_every_row_to_one_site(method, number, seed):
    made = getattr(fd.data, method)(X, y, y + 5, num_partitions=number, seed=seed, **METHODS[method])
    again = getattr(fd.data, method)(X, y, y + 5, num_partitions=number, seed=seed, **METHODS[method])
    assert len(made) == number
    rows = np.concatenate([part[0] for part in made.values()])
    np.testing.assert_array_equal(np.sort(rows[:, 0]), X[:, 0])
    labels = dict(zip(X[:, 0], y, strict=True))
    for name, (x, own, group) in made.items():
        assert len(x) >= 1
        np.testing.assert_array_equal(own, [labels[first] for first in x[:, 0]])
        np.testing.assert_array_equal(group, own + 5)
        np.testing.assert_array_equal(x, again[name][0])


def test_a_small_alpha_makes_sites_of_one_label():
    labels = np.repeat([0.0, 1.0], 500)
    rows = np.zeros((1000, 1))

    def purity(alpha: float) -> float:
        made = fd.data.dirichlet(rows, labels, num_partitions=10, alpha=alpha, seed=0)
        return float(np.mean([max(np.mean(part[1]), 1 - np.mean(part[1])) for part in made.values()]))

    assert purity(0.05) > 0.9 > 0.55 > purity(1000.0)


def test_a_minimum_size_is_kept():
    made = fd.data.dirichlet(X, y, num_partitions=3, alpha=0.3, min_partition_size=4, seed=0)
    assert min(len(part[0]) for part in made.values()) >= 4


def test_shards_hold_few_labels():
    labels = np.repeat(np.arange(10.0), 20)
    made = fd.data.shards(np.zeros((200, 1)), labels, num_partitions=10, num_shards_per_partition=2, seed=3)
    assert all(len(np.unique(part[1])) <= 2 for part in made.values())


def test_sizes_follow_the_power_law():
    made = fd.data.power_law(np.zeros((10_000, 1)), np.zeros(10_000), num_partitions=8, alpha=1.0)
    sizes = np.array([len(part[0]) for part in made.values()])
    np.testing.assert_allclose(sizes / sizes[0], 1.0 / np.arange(1, 9), rtol=0.02)


def test_sites_have_their_own_range_of_a_column():
    values = np.random.default_rng(0).permutation(23).astype(float)
    made = fd.data.by_column(X, y, partition_by=values, num_partitions=4)
    order = dict(zip(X[:, 0], values, strict=True))
    ranges = [[order[first] for first in part[0][:, 0]] for part in made.values()]
    for low, high in pairwise(ranges):
        assert max(low) < min(high)


def test_natural_sites_are_called_by_their_ids():
    ids = np.array(["b", "a"] * 11 + ["c"])
    made = fd.data.natural(X, y, partition_by=ids)
    assert {name: len(part[0]) for name, part in made.items()} == {"a": 11, "b": 11, "c": 1}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fd.data.iid(X, y, num_partitions=24), "'num_partitions' .* from 1 to 23"),
        (lambda: fd.data.iid(X, y, num_partitions=2.5), "whole number"),
        (lambda: fd.data.dirichlet(X, y, num_partitions=2, alpha=0), "'alpha' .* > 0"),
        (lambda: fd.data.dirichlet(X, y, num_partitions=11, alpha=0.01, min_partition_size=2), "raise alpha"),
        (lambda: fd.data.shards(X, y, num_partitions=20, num_shards_per_partition=3), "'num_shards_per_partition'"),
        (lambda: fd.data.by_column(X, y, partition_by=2, num_partitions=2), "a column of X, in \\[0, 1\\]"),
        (lambda: fd.data.natural(X, y, partition_by=np.arange(3)), "one entry per row"),
        (lambda: fd.data.iid(X, y, num_partitions=2, seed=-1), "'seed'"),
    ],
)
def test_wrong_partitions(call, words):
    with pytest.raises(fd.FoedusError, match=words):
        call()
