"""Anderson acceleration: few steps on a linear map, and bad steps are taken back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foedus.numerics import anderson

advance = jax.jit(anderson.advance)


def iterated(residual, xi: np.ndarray, steps: int) -> list[np.ndarray]:
    memory, point, seen = anderson.blank(len(xi)), jnp.asarray(xi), []
    for _ in range(steps):
        point, memory, _ = advance(memory, point, residual(point))
        seen.append(np.asarray(point))
    return seen


def test_a_linear_map_is_solved_in_as_many_steps_as_it_has_dimensions():
    matrix = np.diag([0.999, 0.99, 0.9, 0.5])
    goal = np.array([1.0, -2.0, 3.0, 0.5])
    seen = iterated(lambda xi: (matrix - np.eye(4)) @ (xi - goal), np.zeros(4), 8)
    np.testing.assert_allclose(seen[-1], goal, atol=1e-6)


def test_a_step_after_which_the_residual_has_grown_is_taken_back():
    matrix = np.diag([0.9, 0.5])
    points, memory, point = [], anderson.blank(2), jnp.asarray([4.0, 1.0])
    for _ in range(3):
        points.append(point)
        point, memory, worse = advance(memory, point, (matrix - np.eye(2)) @ point)
        assert not worse
    # as if the accelerated point had been a bad one
    smallest = float(memory.size)
    back, memory, worse = advance(memory, point, jnp.asarray([0.0, 1.6 * smallest]))
    assert worse
    np.testing.assert_allclose(back, matrix @ points[-1], rtol=1e-12)
    # the next steps are measured against the same smallest residual
    assert float(memory.size) == smallest
    assert int(memory.count) == 0


def test_a_point_far_off_is_not_taken():
    """Residuals that hardly change, as in a valley, would have the next point where they end: here 1e9 away."""
    point, memory = jnp.zeros(2), anderson.blank(2)
    following, memory, _ = advance(memory, point, jnp.asarray([1.0, 0.0]))
    np.testing.assert_allclose(following, [1.0, 0.0])
    following, memory, worse = advance(memory, following, jnp.asarray([1.0 - 1e-9, 0.0]))
    assert not worse
    np.testing.assert_allclose(following, [2.0, 0.0], rtol=1e-8)


def test_a_point_is_taken_up_to_a_hundred_times_the_size_of_the_last():
    """Along a line, the residual falls from 1 to 1 − 1/reach, so the mixed point is `reach` away from the start."""
    for reach, taken in ((90.0, True), (210.0, False)):
        memory = anderson.blank(2)
        following, memory, _ = advance(memory, jnp.zeros(2), jnp.asarray([1.0, 0.0]))
        following, memory, _ = advance(memory, following, jnp.asarray([1.0 - 1.0 / reach, 0.0]))
        # the last point is 1, so the bound is 100·(1 + 1)
        assert float(following[0]) == pytest.approx(reach if taken else 2.0 - 1.0 / reach, rel=1e-6)
