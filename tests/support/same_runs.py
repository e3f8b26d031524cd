"""Whether two runs are the same."""

import jax
import numpy as np

import foedus as fd


def same(a: fd.Run, b: fd.Run) -> None:
    """Two runs are equal to the bit."""
    jax.tree.map(np.testing.assert_array_equal, a.w, b.w)
    assert a.history.keys() == b.history.keys()
    for name, values in a.history.items():
        np.testing.assert_array_equal(values, b.history[name], err_msg=name)
    assert (a.rounds, a.converged, a.objective, a.reason) == (b.rounds, b.converged, b.objective, b.reason)
