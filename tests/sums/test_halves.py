"""A check by halves: what it finds, what it tells, and servers and sites that abuse it."""

import itertools

import numpy as np
import pytest

pytest.importorskip("cryptography")

from foedus.sums.halves import CheckingSite, CheckOrder, HalvesSum, halves, node_at
from foedus.sums.messages import MaskedVector, RevealOrder
from foedus.sums.play import exchange_keys, sum_words, trial_identities
from foedus.sums.site import Breach, MaskingSite

NAMES = tuple(f"s{i:02d}" for i in range(16))
IDENTITIES = trial_identities(NAMES)
SIZE = 3


class Table:
    """Sites that have summed rounds 0 and 1, and can be asked for checks."""

    def __init__(self, count: int = 16, least: int = 3, most: int = 5, is_noisy: bool = False):
        self.names = NAMES[:count]
        self.records: dict[str, dict[str, str]] = {name: {} for name in self.names}
        sites = {name: MaskingSite(IDENTITIES[name], least, self.records[name], is_noisy) for name in self.names}
        self.masking = sites
        self.checking = {name: CheckingSite(site, most) for name, site in self.masking.items()}
        exchange_keys(self.masking, "run")
        rng = np.random.default_rng(0)
        self.words = [{name: rng.integers(-100, 100, SIZE) for name in self.names} for _ in range(2)]
        for round in range(2):
            sum_words(self.masking, self.words[round], "run", 0, round)

    def order(self, path: str, rounds: tuple[int, ...] = (1,), attempt: int = 0, **more) -> CheckOrder:
        return CheckOrder(**{"run": "run", "epoch": 0, "rounds": rounds, "attempt": attempt, "sites": self.names,
                             "path": path} | more)  # fmt: skip

    def check(self, order: CheckOrder) -> tuple[np.ndarray, np.ndarray]:
        work = HalvesSum(CheckOrder.from_bytes(order.to_bytes()), SIZE * len(order.rounds))
        for name in order.node:
            work.work.take(name, MaskedVector.from_bytes(self.checking[name].vector(order).to_bytes()))
        for name, request in work.work.reveal_orders().items():
            work.work.take_reveal(name, self.checking[name].reveal(request))
        return work.totals()

    def true(self, sites: tuple[str, ...], rounds: tuple[int, ...] = (1,)) -> list[int]:
        return np.concatenate([sum(self.words[r][name] for name in sites) for r in rounds]).tolist()


def test_the_sums_are_those_of_both_halves_and_of_the_halves_of_one():
    table = Table()
    for path in ("", "1", "1"):
        order = table.order(path, (0, 1))
        for total, half in zip(table.check(order), halves(order.node), strict=True):
            assert total.tolist() == table.true(half, (0, 1))


def test_an_order_comes_back_from_its_bytes_and_wrong_bytes_are_refused():
    from foedus.base.errors import FoedusError

    order = Table(8).order("", (0, 1), 3)
    assert CheckOrder.from_bytes(order.to_bytes()) == order
    for bad in (order.to_bytes() + b"x", order.to_bytes()[:-1], Table(8).order("2").to_bytes()):
        with pytest.raises(FoedusError):
            CheckOrder.from_bytes(bad)


@pytest.mark.parametrize("count", [8, 9, 11, 13, 16, 30, 31, 33, 64, 100])
@pytest.mark.parametrize("least", [3, 4, 6])
def test_no_combination_of_all_sums_that_sites_allow_is_about_fewer_sites_than_one_sum_may_be(count, least):
    """Everything that is a combination of the sums is constant on the tree's leaves, and each leaf is large enough."""
    root = tuple(range(count))
    nodes, queue = [root], [""]
    while queue:
        path = queue.pop()
        pair = halves(node_at(root, path))
        if min(map(len, pair)) > least:
            nodes += pair
            queue += [path + "0", path + "1"]
    matrix = np.zeros((len(nodes), count))
    for row, node in zip(matrix, nodes, strict=True):
        row[list(node)] = 1.0
    columns = {tuple(column) for column in matrix.T.tolist()}
    sizes = [sum(tuple(column) == one for column in matrix.T.tolist()) for one in columns]
    assert min(sizes) > least, "sites that no sum tells apart"


# --- a server that lies ---


def refuses(call, word: str) -> None:
    with pytest.raises(Breach, match=word):
        call()


def test_halves_below_the_floor_of_one_site_are_summed_by_nobody():
    """Sites of one half have a higher floor than those of the other: no half is told, for one would tell the other."""
    table = Table(8)
    for name in NAMES[4:8]:
        table.masking[name].least_others = 5
    order = table.order("")
    for name in NAMES[:4]:
        table.checking[name].vector(order)
    for name in NAMES[4:8]:
        refuses(lambda name=name: table.checking[name].vector(order), "secure_min")
    own = {n: table.checking[n].vector(order) for n in NAMES[:4]}
    shares = {n: {o: own[o].shares[n] for o in NAMES[:4] if o != n} for n in NAMES[:4]}
    for name in NAMES[:4]:  # the server asks the willing half to reveal without the other
        for survivors in (NAMES[:4], NAMES[:8]):
            request = RevealOrder("run", 0, 1, 0, survivors, shares[name])
            refuses(lambda name=name, request=request: table.checking[name].reveal(request), "check")


def test_seven_sites_are_not_split_at_all():
    table = Table(7)
    refuses(lambda: table.checking[NAMES[0]].vector(table.order("")), "secure_min")


@pytest.mark.parametrize("path", ["0", "1", "01"])
def test_a_check_begins_with_all_sites(path):
    table = Table()
    name = node_at(NAMES, path)[0]
    refuses(lambda: table.checking[name].vector(table.order(path)), "goes on from the half")


def test_a_check_goes_step_by_step_into_the_half_that_a_site_is_in():
    table = Table()
    table.check(table.order(""))
    table.check(table.order("0"))
    refuses(lambda: table.checking[NAMES[8]].vector(table.order("01")), "other sites")
    refuses(lambda: table.checking[NAMES[8]].vector(table.order("10")), "goes on from the half")
    refuses(lambda: table.checking[NAMES[0]].vector(table.order("")), "goes on from the half")


def test_a_set_of_the_servers_choice_is_refused():
    table = Table()
    for sites in (NAMES[:15], (*NAMES[:14], "s15"), NAMES[1:]):
        refuses(lambda sites=sites: table.checking[NAMES[3]].vector(table.order("", sites=sites)), "another set")


def test_a_round_in_which_a_site_was_missing_is_not_checked():
    """Only where nobody was missing have all sites agreed on one set, and so on one tree."""
    table = Table(16, is_noisy=True)
    exchange_keys(table.masking, "run", 1)
    sum_words(table.masking, table.words[0], "run", 1, 2, silent=(NAMES[5],))
    exchange_keys(table.masking, "run", 2)
    refuses(lambda: table.checking[NAMES[0]].vector(table.order("", (2,), epoch=2)), "not summed over all")


def test_a_round_that_was_never_summed_and_one_of_another_epoch_are_refused():
    table = Table(8)
    refuses(lambda: table.checking[NAMES[0]].vector(table.order("", (7,))), "not summed")
    refuses(lambda: table.checking[NAMES[0]].vector(table.order("", epoch=4)), "no keys")
    refuses(lambda: table.checking[NAMES[0]].vector(table.order("", (1, 1))), "once")


def test_more_checks_than_the_policy_allows_are_refused_also_after_a_restart():
    table = Table(8, most=2)
    table.check(table.order("", (0,)))
    table.check(table.order("", (1,)))
    refuses(lambda: table.checking[NAMES[0]].vector(table.order("", (0, 1))), "secure_checks")
    again = CheckingSite(table.masking[NAMES[0]], 2)  # what is on the disk is the record
    refuses(lambda: again.vector(table.order("", (0, 1))), "secure_checks")
    assert Table(8, most=0).records[NAMES[0]].keys() == {"set"}
    refuses(lambda: Table(8, most=0).checking[NAMES[0]].vector(table.order("")), "secure_checks")


def test_sites_that_were_shown_different_checks_reveal_nothing():
    table = Table(8)
    one, other = table.order("", (0,)), table.order("", (1,))
    vectors = {n: table.checking[n].vector(one if n < "s04" else other) for n in NAMES[:8]}
    for name, order in ((NAMES[0], one), (NAMES[7], other)):
        shares = {o: vectors[o].shares[name] for o in NAMES[:8] if o != name}
        request = RevealOrder("run", 0, order.rounds[-1], 0, NAMES[:8], shares)
        refuses(lambda name=name, request=request: table.checking[name].reveal(request), "not made for this check")


def test_a_check_is_masked_once_and_revealed_once():
    table = Table(8)
    order = table.order("")
    first = table.checking[NAMES[0]].vector(order)
    assert table.checking[NAMES[0]].vector(order) == first, "the same request gets the same bytes"
    table.checking[NAMES[0]].vector(table.order("", (0,)))
    refuses(lambda: table.checking[NAMES[0]].vector(order), "masked already")
    assert table.checking[NAMES[0]].vector(table.order("", attempt=1)) != first


def test_one_site_cannot_change_the_other_halfs_sum():
    """A site that lies in a check changes the sum of its own half alone, so it puts no blame on others."""
    table = Table(8)
    order = table.order("")
    liar = table.masking[NAMES[0]].history[1]
    table.masking[NAMES[0]].history[1] = type(liar)(liar.sites, np.full(SIZE, 77, "<i8").tobytes())
    first, second = table.check(order)
    assert second.tolist() == table.true(NAMES[4:8])
    assert first.tolist() != table.true(NAMES[:4])


def test_what_one_site_sends_is_hidden_in_its_half():
    """Given the sums of the halves, a site's vector is as likely under any words: two runs look alike."""
    seen = []
    for swap in (False, True):
        table = Table(8)
        if swap:  # two sites of one half change places: the sums stay as they are
            a, b = (table.masking[n].history for n in NAMES[:2])
            a[1], b[1] = b[1], a[1]
        vectors = [table.checking[n].vector(table.order("")).vector() for n in NAMES[:8]]
        words = {tuple(w.view(np.int64).tolist()) for w in vectors}
        assert not words & {tuple(table.words[1][n].tolist()) for n in NAMES[:8]}
        seen.append(table.check(table.order("", attempt=1)))
    assert all(np.array_equal(x, y) for x, y in zip(*seen, strict=True))


def test_all_pairs_of_allowed_sets_are_nested_or_apart():
    root = tuple(range(33))
    nodes = [node_at(root, "".join(bits)) for depth in range(4) for bits in itertools.product("01", repeat=depth)]
    for one, other in itertools.combinations(map(set, nodes), 2):
        assert one <= other or other <= one or not one & other
