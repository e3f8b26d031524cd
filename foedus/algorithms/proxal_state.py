"""What the parties of ProxAL keep, and what they tell each other in an outer round."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from foedus.algorithms.lagrangian import Excess
from foedus.pytrees import state
from foedus.terms import Data

GROWTH = 3.0  # what β = "auto" is multiplied by at first; its root after each subproblem that was not cheap


@state
class Track:
    """How the outer steps go."""

    k: Array  # the number of the point that is announced, or of the subproblem that is being solved
    dw: Array  # ‖w^k − w^{k−1}‖_∞
    dmu: Array  # max_i ‖μ_i^k − μ_i^{k−1}‖_∞, the server's included
    product: Array  # max |μ·c|
    violations: Array  # at the last outer points, newest first
    least: Array  # the smallest of all, and whose it was; n stands for the server
    least_at: Array
    rounds: Array  # that the present subproblem has taken
    residual: Array  # ‖w^k − w^{k−1}‖_∞/β and the violation at w^k, as β was last judged by
    broken: Array
    pace: Array  # what β is multiplied by
    done: Array
    stuck: Array

    @staticmethod
    def blank() -> "Track":
        far, none, no = jnp.full((), jnp.inf), jnp.zeros((), int), jnp.zeros((), bool)
        return Track(none, far, far, far, jnp.full(3, jnp.inf), far, none, none, far, far, jnp.full((), GROWTH), no, no)


@state
class Account:
    """What a client says about the point w^k."""

    dmu: Array  # ‖Δμ_i‖_∞
    product: Array  # |μ·c|_∞
    excess: Excess
    share: Any  # in the coupled rows, if there are any


@state
class Server:
    w: Array  # (w, s): the point that the next message is about
    centre: Array  # w^k
    mu: Array  # μ_0
    beta: Array  # of the subproblem that is being solved, or the next one
    last_beta: Array  # of the one whose answer is announced
    own: Data | None  # the server's own data
    inner: Any
    outer: Array  # whether the next round is an outer one
    accounts: Account  # the clients' answers to it
    heard: Array
    track: Track


@state
class Client:
    mu: Array
    beta: Array
    centre: Array
    k: Array
    index: Array
    dmu: Array  # ‖Δμ_i‖_∞ of the last update: asked again, it tells the same
    inner: Any


@state
class News:
    """The outer message: the point w^k and k; with coupled rows, their multiplier and a client's place among the s."""

    w: Array
    k: Array
    beta: Any  # of the next subproblem, where it is not a setting
    nu: Any
    index: Any
    hint: Any  # what the inner method wants its clients to start from


@state
class Told:
    """The outer reply: the account of this point, and the first reply of the next subproblem."""

    account: Account
    first: Any
