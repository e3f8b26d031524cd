"""One simulation over two processes gives the iterates of one."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

PROCESS = """
import json, sys
me, count, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
import jax
import foedus as fd
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, me)
import numpy as np
import foedus.certificate.measure
foedus.certificate.measure.GAP_COLUMNS = 3  # so that the gap comes from products with vectors
rng = np.random.default_rng(0)
n, half = 8, 8 // count
clients = {f"c{i}": (rng.normal(size=(10 + i, 4)), (rng.random(10 + i) < 0.5).astype(float)) for i in range(n)}
rows = max(len(y) for _, y in clients.values())
mine = dict(list(clients.items())[me * half : (me + 1) * half])
# every process fills its clients up to the same rectangle
x, y = np.zeros((half, rows, 4)), np.zeros((half, rows))
for i, (a, b) in enumerate(mine.values()):
    x[i, : len(b)], y[i, : len(b)] = a, b
stacked = fd.data.Stacked({"x": x, "y": y}, counts=[len(b) for _, b in mine.values()], names=tuple(mine))
cap = [fd.constraints.LossCap(fd.label(1), at_most=0.65)]
for algorithm, more in (
    (fd.FedAvg(k0=3), {}),
    (fd.FedGiA(), {}),
    (fd.ProxAL(beta=10.0, inner="newton"), {"constraints": cap}),
):
    problem = fd.Problem(stacked, loss=fd.losses.logistic, **more)
    run = fd.solve(problem, algorithm, max_rounds=40, runtime=fd.Spread() if count > 1 else None)
    rows_ = [(r.site, r.value, r.multiplier) for r in run.certificate.rows]
    print(json.dumps([run.w.tolist(), run.history["objective"].tolist(), run.objective, run.certificate.stationarity,
                      rows_, run.reason, run.certificate.gap]))
"""


def play(count: int) -> list[list]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(me), str(count), str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
        for me in range(count)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started)
    return [[json.loads(line) for line in text.splitlines() if line.startswith("[[")] for text in said]


@pytest.mark.slow
def test_two_processes_give_the_iterates_of_one():
    (alone,), (first, second) = play(1), play(2)
    assert first == second, "all processes get the same run"
    assert len(first) == len(alone) == 3
    for ours, theirs in zip(first, alone, strict=True):
        for found, expected in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        assert [row[0] for row in ours[4]] == [row[0] for row in theirs[4]]
        np.testing.assert_allclose([r[1:] for r in ours[4]], [r[1:] for r in theirs[4]], atol=1e-9)
        assert ours[5] == theirs[5]
        np.testing.assert_allclose(ours[6], theirs[6], rtol=1e-6)
