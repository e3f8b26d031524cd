"""Settings of all tests."""

import contextlib
import ctypes
import gc
import os
import resource
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the workers take all cores already; further threads wait in loops

# Most of the time goes into compiling programs that run for milliseconds, so XLA is to optimise little. This holds for
# the processes that tests start, too. `make test-all` sets XLA_FLAGS to nothing: it compiles as users do.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

# the same examples on every machine and in every run; compilation makes the first example slow
settings.register_profile("foedus", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("foedus")


MOST_MEMORY = 2 * 2**30  # bytes of one worker: a laptop with 8 GB runs two of them
LET_GO = 1.1 * 2**30  # above this, compiled programs are let go between two tests


# Modules that share programs run in one worker, after one another, and come first because they take longest. So do
# those over real sites: they share a federation, and time what they measure.
TOGETHER = {
    "test_algorithms": "algorithms",
    "test_checkpoint": "algorithms",
    "test_simulate": "algorithms",
    "test_proxal": "constrained",
    "test_infeasible": "constrained",
    "test_interior_point": "constrained",
    "test_interior_point_random": "constrained",
    "test_flare_attacks": "federation",
    "test_flare_breakages": "federation",
    "test_flare_doors": "federation",
    "test_flare_experiment": "federation",
    "test_flare_real": "federation",
    "test_drfl": "robust",
    "test_robust_gap": "robust",
    "test_rivals": "robust",
}


def pytest_configure(config: pytest.Config) -> None:
    """Tests compute in float64 throughout, as they call parts of foedus whose callers have entered it."""
    import jax

    from foedus.base.engine import float64

    jax.config.update("jax_enable_x64", True)  # in threads of tests too
    whole_session = contextlib.ExitStack()
    whole_session.enter_context(float64())
    config.add_cleanup(whole_session.close)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {stem: place for place, stem in enumerate(TOGETHER)}
    items.sort(key=lambda item: order.get(Path(item.path).stem, len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of one module go to one worker, which compiles what they share once, and so do modules of one group."""
    from xdist.scheduler import LoadScopeScheduling

    class ByModule(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            stem = Path(nodeid.split("::")[0]).stem
            return TOGETHER.get(stem, stem)

    config.option.loadscopereorder = False
    return ByModule(config, log)


def _memory() -> int:
    """The bytes that this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pytest_runtest_teardown() -> None:
    """What is compiled grows to gigabytes over all tests, and is of use to the next few only."""
    if os.path.exists("/proc/self/statm") and _memory() > LET_GO:
        import jax

        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session", autouse=True)
def _memory_stays_within_bounds():
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak <= MOST_MEMORY, f"this worker needed {peak / 2**30:.1f} GB; share shapes, or make instances smaller"


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """A server and three sites on this machine, for all tests that need some."""
    from foedus.federation.flare.trial import Federation

    made = Federation.up(tmp_path_factory.mktemp("federation"), 3)
    yield made
    made.down()
    assert not [pid for party in ("server", *made.sites) for pid in made.processes(party)]
    gc.collect()  # sockets that FLARE left open when its server was killed are closed here, where that is no error


@pytest.fixture
def many_columns(monkeypatch):
    """Make every problem one of many columns; what was traced before knows nothing of it."""
    from foedus.federation import layout

    monkeypatch.setattr("foedus.certificate.measure.GAP_COLUMNS", 2)
    monkeypatch.setattr("foedus.numerics.interpreter.dispatch._programs", OrderedDict())
    monkeypatch.setattr(layout, "parts", layout.parts.__wrapped__)  # not the one that is traced once
