"""A server that lies over NVIDIA FLARE, in its own process: every site refuses, on record. Slow; needs NVIDIA FLARE."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from federations import REAL

import foedus as fd
from foedus.base.errors import FoedusError
from foedus.federation.names import RUNS
from foedus.federation.order import order_of

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

pytestmark = [*REAL, pytest.mark.slow]

SITES = 4
LIES = {
    "a model of the server's choice": "no message of the server holds a model",
    "a round too early": "does not follow",
    "a greeting with more rounds": "not signed by the coordinator",
}
# what Python imports first in every process of the federation; only a server's makes an Exchange
LIAR = """
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "foedus.federation.exchange":
            return None
        import importlib.util
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            begin = module.Exchange.__init__

            def lie(self, run, client, ask, *rest, **more):
                from lies import LIES, Liar

                kind, change, _ = LIES[open(os.environ["FOEDUS_TEST_LIE"]).read()]

                class Hall:
                    pass

                hall = Hall()
                hall.ask = ask
                begin(self, run, client, Liar(hall, kind, change, tuple(client)).ask, *rest, **more)

            module.Exchange.__init__ = lie

        spec.loader.exec_module = exec_module
        return spec

if "FOEDUS_TEST_LIE" in os.environ:
    sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(scope="module")
def dishonest(tmp_path_factory):
    """A federation whose server's process tells the lie that a file names."""
    from foedus.federation.flare.trial import Federation

    folder = tmp_path_factory.mktemp("liar")
    (folder / "sitecustomize.py").write_text(LIAR)
    (folder / "lie.txt").write_text("")
    support = Path(__file__).parents[1] / "support"
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "FOEDUS_TEST_LIE")}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(support), before["PYTHONPATH"] or ""])
    os.environ["FOEDUS_TEST_LIE"] = str(folder / "lie.txt")
    made = None
    try:
        made = Federation.up(folder / "federation", SITES)
        yield made, folder / "lie.txt"
    finally:
        if made is not None:
            made.down()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def record(federation, site, run):
    path = federation.kit(site) / RUNS / "messages.jsonl"
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return [one["why"] for one in lines if one["run"] == run and one["code"] != "ok"]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_over_flare_is_refused_and_on_record_at_every_site(dishonest, lie):
    federation, file = dishonest
    file.write_text(lie)
    draw = np.random.default_rng(0)
    problem = fd.Problem(
        {site: (draw.normal(size=(12, 3)), draw.normal(size=12)) for site in federation.sites},
        loss=fd.losses.least_squares,
    ).over(np.zeros(3))
    run = "lie-" + re.sub("[^a-z]", "-", lie)
    order = order_of(
        problem, fd.FedAvg(k0=1, lr=0.1).fit(problem).algorithm.by_sums(), np.zeros(3), run=run, sites=federation.sites,
        seed=0, max_rounds=3, participation=fd.Fraction(), secure=True,
    )  # fmt: skip
    with pytest.raises(FoedusError):
        fd.Flare(at=federation.folder, keep_going=0, timeout=30.0).run(federation, order, problem)
    for site in federation.sites:
        assert any(re.search(LIES[lie], line) for line in record(federation, site, run)), record(federation, site, run)
