"""JAX's settings and late imports; a process that dies while it writes to the cache leaves nothing to trip over."""

import contextlib
import importlib
import io
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import foedus as fd
from foedus.base import engine

linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux counts a process's memory maps")


@linux
def test_compiled_programs_are_let_go_before_the_kernel_grants_no_more_memory(monkeypatch: pytest.MonkeyPatch):
    let_go = []
    monkeypatch.setattr(jax, "clear_caches", lambda: let_go.append(True))
    assert not engine.relieve()
    assert not let_go
    assert engine.relieve(share=0.0)
    assert let_go


@linux
@pytest.mark.slow
def test_programs_that_were_let_go_free_their_memory_and_run_again():
    def held() -> int:
        return Path("/proc/self/maps").read_bytes().count(b"\n")

    sites = [(np.arange(12.0).reshape(6, 2) / 10, np.array([1.0, 0.0] * 3))] * 2
    problem, algorithm = fd.Problem(sites, loss=fd.losses.logistic), fd.FedGiA(tol=0.0)
    w = fd.solve(problem, algorithm, max_rounds=1000).w  # so many rounds that they are compiled
    before = held()
    assert engine.relieve(share=0.0)
    assert held() < before - 200
    np.testing.assert_array_equal(fd.solve(problem, algorithm, max_rounds=1000).w, w)


def test_lapack_is_called_in_one_place_only():
    """Elsewhere a `vmap` would make it a batched call, two of which can wait for each other for ever."""
    wanted = re.compile(r"(jnp|jax\.numpy|jax\.scipy|jax\.lax)\.linalg\.(?!norm|cg\b|sparse)\w+")
    folder = Path(fd.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        found = wanted.findall(path.read_text())
        assert not found or path.name == "lapack.py", (path.relative_to(folder), found)


def printed(code: str) -> str:
    """What a fresh process prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_names_of_foedus_import_no_library_that_a_run_may_not_need():
    """SciPy, scikit-learn, pandas and rich take longer to import than foedus itself."""
    code = (
        "import foedus as fd, sys; late = ('Classifier', 'Regressor', 'Regression');"
        "names = [n for n in fd.__all__ if not n.endswith(late)];"
        "[getattr(fd, n) for n in names];"
        "print([m for m in ('scipy.special', 'sklearn', 'pandas', 'rich') if m in sys.modules])"
    )
    assert printed(code) == "[]"


def test_jax_is_imported_when_it_is_needed():
    """Importing it takes a second and 130 MB, which commands and processes without it are spared."""
    code = "import sys, foedus as fd, foedus.app.cli, foedus.federation.flare.trial; print('jax' in sys.modules)"
    assert printed(code) == "False"


def test_programs_are_kept_on_the_disk_while_a_thread_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def set_folder(folder: Path | None) -> None:
        jax.config.update("jax_compilation_cache_dir", None if folder is None else str(folder))

    before, context = jax.config.jax_compilation_cache_dir, engine._ProgramsOnDisk()
    monkeypatch.setenv("FOEDUS_CACHE", str(tmp_path))
    try:
        set_folder(None)
        with context:
            with context:
                assert str(jax.config.jax_compilation_cache_dir).startswith(str(tmp_path))
            assert jax.config.jax_compilation_cache_dir == str(engine.cache_dir()), "another thread still computes"
            jax.jit(lambda x: 3.0 * x + 1.0)(np.ones(3))
        assert jax.config.jax_compilation_cache_dir is None
        assert [*engine.cache_dir().glob("*-cache")]
        set_folder(tmp_path / "own")
        with context:
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own"), "the user's own is left alone"
        set_folder(None)
        monkeypatch.setenv("FOEDUS_CACHE", "off")
        with context:
            assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


# --- the user's process ---

USER = """
import gc, os, signal, sys, threading, types, warnings
import jax, jax.numpy as jnp, numpy as np, threadpoolctl

def process():
    modules = [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] == "jax"]
    code = (type, types.FunctionType, types.BuiltinFunctionType)
    functions = {(m.__name__, k): v for m in modules for k, v in vars(m).items() if isinstance(v, code)}
    methods = {(k, name): v for k, one in functions.items() if isinstance(one, type) for name, v in vars(one).items()
               if isinstance(v, code)}
    return {
        "settings of JAX": dict(jax.config.values), "meta path": list(sys.meta_path), "environment": dict(os.environ),
        "functions of JAX": functions, "methods of JAX": methods, "collector": gc.get_threshold(),
        "signals": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], "errors": np.geterr(),
        "warnings": list(warnings.filters), "threads": threading.active_count(), "umask": os.umask(0o022),
        "BLAS": {one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"},
    }

def differences(before, after):
    changed = {name for name in before if before[name] != after[name]}
    for name in changed & {"functions of JAX", "methods of JAX"}:  # that are imported late are no change
        if all(after[name].get(key) is value for key, value in before[name].items()):
            changed = changed - {name}
    return sorted(changed)

@jax.jit
def own(x):
    return jnp.sin(x) + jnp.sum(x) / 3

def figures():
    x = own(jnp.arange(3.0))
    return x.dtype, x.tobytes(), jnp.zeros(1).dtype, jnp.asarray(np.ones(1)).dtype, jax.jit(jnp.cos)(1.0).dtype
"""


def test_import_and_solve_leave_the_users_process_as_it_was():
    code = USER + (
        "own_before, before = figures(), process();"
        "import foedus as fd; imported = process();"
        "sites = fd.data.split(*fd.data.breast_cancer(), clients=3, seed=0); started = process();"
        "run = fd.solve(fd.Problem(sites, loss=fd.losses.logistic), fd.FedGiA(), max_rounds=3);"
        "print(differences(before, imported), differences(started, process()), figures() == own_before, run.w.dtype)"
    )
    assert printed(code) == "[] [] True float64"


def test_a_solve_in_one_thread_changes_nothing_in_another():
    code = (
        USER
        + """
import foedus as fd
sites = fd.data.split(*fd.data.breast_cancer(), clients=3, seed=0)
mine, seen, over = figures(), set(), threading.Event()
def user():
    while not over.is_set():
        seen.add(figures())
def solve(out):
    problem = fd.Problem(sites, loss=fd.losses.logistic)
    out.append(fd.solve(problem, fd.FedGiA(), max_rounds=3).w.tobytes())
threads, answers = [threading.Thread(target=user)], []
threads += [threading.Thread(target=solve, args=(answers,)) for _ in range(2)]
[one.start() for one in threads]
[one.join() for one in threads[1:]]
over.set()
threads[0].join()
solve(answers)
print(seen == {mine}, len({*answers}), len(answers))
"""
    )
    assert printed(code) == "True 1 3"


EVERYTHING = """
import warnings
warnings.simplefilter("error")  # JAX warns where an array of doubles meets its own default
import hashlib, jax, jax.numpy as jnp, numpy as np, foedus as fd
X, y = fd.data.breast_cancer()
X, y = X[:120, :4], y[:120]
sites = fd.data.split(X, y, clients=4, seed=0)
cap = fd.constraints.LossCap(fd.label(1), at_most=0.6)
plain = fd.Problem(sites, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1))
capped = fd.Problem(sites, loss=fd.losses.logistic, where=fd.label(0), constraints=[cap])
own = fd.Problem(sites, objective=lambda w, data: data.mean((data["x"] @ w["a"] - data["y"]) ** 2))
gia = fd.solve(plain, fd.FedGiA(), max_rounds=30)
runs = [
    gia, fd.solve(capped), fd.solve(own, fd.FedAvg(), w0={"a": np.zeros(4)}, max_rounds=3),
    fd.solve(plain, fd.InteriorPoint(), secure=True),
]
worst = fd.robust.worst_case(gia.w, (X, y), 0.1, loss=fd.losses.logistic)
classifier = fd.NeymanPearsonClassifier().fit(X, y)
figures = [
    *(leaf for run in runs for leaf in jax.tree.leaves(run.w)), *(run.objective for run in runs),
    *(run.certificate.stationarity for run in runs), worst.value,
    *(row.error for row in gia.summary(plain).rows), fd.evaluate(plain, gia.w, sites)["accuracy"].low,
    gia.predict_proba(X[:9]), classifier.coef_, classifier.predict_proba(X[:9]), fd.ens(X, lam=1.0, eta=1.0),
]
fd.check_algorithm(fd.FedGiA())
noise = fd.Local(epsilon=1.0, delta=1e-5, sampler="opendp")  # which JAX calls on threads of its own
fd.solve(fd.Problem(sites, loss=fd.losses.logistic), fd.FedAvg(k0=1), privacy=noise, max_rounds=6)
print({str(np.asarray(one).dtype) for one in figures}, all(not isinstance(one, jax.Array) for one in figures))
print(hashlib.sha256(b"".join(np.asarray(one, float).tobytes() for one in figures)).hexdigest())
"""


@pytest.mark.slow
def test_foedus_computes_the_same_whatever_jax_counts_in_by_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    in_float32 = printed(EVERYTHING).splitlines()
    assert in_float32[0] == "{'float64'} True"
    with contextlib.redirect_stdout(io.StringIO()) as here:  # where it is float64
        exec(EVERYTHING, {})
    assert here.getvalue().splitlines() == in_float32


def test_importing_a_module_leaves_the_function_of_its_name_in_its_place():
    for module in ("foedus.app.solve", "foedus.data.prepared"):
        importlib.import_module(module)
    assert all(callable(one) for one in (fd.solve, fd.data.prepare, fd.data.breast_cancer))
    assert fd.privacy.__name__ == "foedus.privacy"
    with pytest.raises(AttributeError, match="has no attribute 'sovle'"):
        _ = fd.sovle  # pyright: ignore[reportAttributeAccessIssue]
