"""A coordinator that lies in files that people carry, and a carrier that changes one: the sites refuse, on record."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("cryptography")

from couriers import CourierWard
from lies import LIES, Own
from masked_wards import SECURE

from foedus.federation import packing
from foedus.federation.courier.coordinator import CourierPlan

STATED = SECURE.partition("[evaluate]")[0]  # the words and bounds of columns
KINDS = (
    "a model of the server's choice",
    "a round too early",
    "masks of another run",
    "a sum of another round",
    "a reveal with no shares",
    "a certificate at another model",
)


class LyingPlan(CourierPlan):
    """A coordinator that changes what a site is asked, and signs the file all the same."""

    kind, change = "", staticmethod(lambda header, payload: (header, payload))

    def _sign(self, kind, number, site, contents, more=None):
        contents = [self.changed(site, content) for content in contents]
        super()._sign(kind, number, site, contents, more)

    def changed(self, site, content):
        header, payload = packing.unseal(content)
        if header["ask"] != self.kind.split()[0]:
            return content
        change = self.change.change(site) if isinstance(self.change, Own) else self.change
        return packing.seal(*change(header, payload))


def courier(tmp_path):
    return CourierWard(tmp_path, STATED, {"min_subset": 1, "secure_min": 3, "secure": True})


def record(one, name):
    path = one.home(name) / "foedus-runs" / "messages.jsonl"
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return [line["why"] for line in lines if line["code"] != "ok"]


@pytest.mark.parametrize("lie", [*KINDS[:2], *(pytest.param(one, marks=pytest.mark.slow) for one in KINDS[2:])])
def test_a_lie_in_a_signed_file_is_refused_and_on_record_at_every_site(tmp_path, lie, monkeypatch):
    kind, change, why = LIES[lie]
    one = courier(tmp_path)
    monkeypatch.setattr(LyingPlan, "kind", kind)
    monkeypatch.setattr(LyingPlan, "change", change if isinstance(change, Own) else staticmethod(change))
    one.plan = LyingPlan(one.plan.folder)
    for _ in range(20):
        for name in one.names:
            one.answer(name)
        if all(record(one, name) for name in one.names):
            break
        assert one.next().result is None, "the run has gone to its end"
    for name in one.names:
        assert any(re.search(why, line) for line in record(one, name)), (name, record(one, name))


def test_a_file_in_which_the_carrier_changes_a_byte_is_not_answered(tmp_path):
    one = courier(tmp_path)
    for name in one.names:
        one.answer(name)
    one.next()
    draw = np.random.default_rng(0)
    path = max(one.plan.place(one.names[1]).glob("*.foedus"), key=lambda path: path.stat().st_mtime_ns)
    content = path.read_bytes()
    for _ in range(20):
        changed = bytearray(content)
        changed[int(draw.integers(len(changed)))] ^= 1 << int(draw.integers(8))
        path.write_bytes(bytes(changed))
        inbox = one.site[one.names[1]].look(one.plan.place(one.names[1]), one.names[1], one.project)
        assert inbox.question is None or inbox.question.content == content
