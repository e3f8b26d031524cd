"""Settings of all tests."""

import gc
import os

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")

# the same examples on every machine and in every run; compilation makes the first example slow
settings.register_profile("foedus", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("foedus")


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """A server and three sites on this machine, for all tests that need some."""
    from foedus.runtime.flare.local import Federation

    made = Federation.up(tmp_path_factory.mktemp("federation"), 3)
    yield made
    made.down()
    assert not [pid for party in ("server", *made.sites) for pid in made.processes(party)]
    gc.collect()  # sockets that FLARE left open when its server was killed are closed here, where that is no error
