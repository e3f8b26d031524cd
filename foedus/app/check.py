"""check_algorithm: does an algorithm keep the rules that every runtime relies on?

Each rule is a function that raises FoedusError with one sentence. They are played on a small problem, so the whole
check takes seconds. It says nothing about how well an algorithm converges.
"""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree
from foedus.federation import layout, packing, rounds
from foedus.privacy.releasing import sound_noise
from foedus.problem import losses
from foedus.problem.problem import Problem
from foedus.protocol.algorithm import Algorithm, Fit, name_of
from foedus.protocol.participation import LOCAL, Fraction, Participation, Schedule, client_key, round_key
from foedus.runtime import spine, traffic
from foedus.runtime.mistakes import mistake
from foedus.runtime.simulate import PlayedRounds, play_rounds

ROUNDS = 6
SAME = 1e-9  # how far an iterate over messages may be from the simulator's, relative to the model's size
SIZES = (9, 4, 6, 7)  # rows of the small problem's clients
COLUMNS = 3


@float64()
def check_algorithm(algorithm: Algorithm) -> None:
    """Check that an algorithm keeps the protocol's rules; it returns nothing, or raises with one sentence.

    The rules: settings are frozen and can be compared; states keep their form; a reply's shape does not depend on how
    much data a client has; a client that is not asked keeps its state; a run resumes to the bit; the bytes of messages
    are counted; rounds over messages give the simulator's iterates.

    Args:
        algorithm: an algorithm with its settings, as it would be given to `solve`.

    Raises:
        FoedusError: with a sentence that names the function and says what is wrong.

    Example:
        >>> import foedus as fd
        >>> fd.check_algorithm(fd.FedDyn())
    """
    if not isinstance(algorithm, Algorithm):
        hint = f"; write {algorithm.__name__}()" if isinstance(algorithm, type) else ""
        raise FoedusError(f"check_algorithm needs an algorithm. Got {algorithm!r} instead{hint}.")
    _settings(algorithm)
    problem, fit = _fitted(algorithm)
    if (sentence := mistake(fit.algorithm, fit.problem)) is not None:
        raise FoedusError(sentence)
    for rule in (_reply_shapes, _silent_clients, _resume, _counted_bytes, _messages):
        rule(problem, algorithm, fit)


def small_problem(loss: losses.Loss) -> Problem:
    """Four clients of different sizes, with 0/1 labels that every loss accepts."""
    draw = np.random.default_rng(0)
    truth = np.array([1.0, -0.5, 0.25])
    sites = {}
    for name, rows in zip(("north", "south", "east", "west"), SIZES, strict=True):
        x = draw.normal(size=(rows, COLUMNS))
        sites[name] = (x, (x @ truth + 0.5 * draw.normal(size=rows) > 0).astype(float))
    return Problem(sites, loss=loss)


def _settings(algorithm: Algorithm) -> None:
    """Settings are a frozen dataclass that can be compared."""
    name = name_of(algorithm)
    if not dataclasses.is_dataclass(algorithm):
        if vars(algorithm):
            raise FoedusError(f"{name} keeps its settings as plain attributes: write @settings above class {name}.")
        return
    twin = dataclasses.replace(algorithm)
    if twin != algorithm or hash(twin) != hash(algorithm):
        raise FoedusError(f"two {name} with the same settings are not equal, so every run would be compiled anew.")


def _fitted(algorithm: Algorithm) -> tuple[Problem, Fit]:
    """The algorithm on the first of a few losses that it takes."""
    why = ""
    for loss in (losses.least_squares, losses.logistic):
        problem = small_problem(loss).over(np.zeros(COLUMNS))
        try:
            return problem, algorithm.fit(problem)
        except FoedusError as error:
            why = str(error)
    raise FoedusError(f"{name_of(algorithm)} takes neither least squares nor the logistic loss: {why}")


def _played(
    problem: Problem, algorithm: Algorithm, count: int, who: Participation | None = None, path: Path | None = None
) -> PlayedRounds:
    job = spine.prepare(
        problem, algorithm, w0=np.zeros(COLUMNS), seed=3, max_rounds=count, participation=who or Fraction()
    )
    return play_rounds(job, checkpoint=None if path is None else job.checkpoint(path))


def _reply_shapes(problem: Problem, algorithm: Algorithm, fit: Fit) -> None:
    """A reply's shape does not depend on how much data a client has."""
    made, terms = fit.algorithm, fit.problem.terms
    w0 = jax.ShapeDtypeStruct((terms.dim,), float)
    server = jax.eval_shape(lambda w, own: made.init(terms, w, own), w0, fit.problem.server)
    length = fit.problem.stacked.rows
    for index, kind in enumerate(made.kinds):
        shapes = []
        for rows in (3, 50):
            one = jax.tree.map(
                lambda a, rows=rows: jax.ShapeDtypeStruct(
                    (rows, *a.shape[2:]) if a.shape[1:2] == (length,) else a.shape[1:], a.dtype
                ),
                fit.problem.data,
            )
            client = jax.eval_shape(lambda d, w: made.join(terms, d, w), one, w0)
            _, _, reply = traffic.exchange_shapes(kind, terms, server, client, one)
            shapes.append(jax.tree.map(lambda a: a.shape, reply))
        if shapes[0] != shapes[1]:
            raise FoedusError(
                f"the reply of local of {name_of(algorithm)} (kind {index}) has shape {shapes[0]} for a client with 3 "
                f"rows and {shapes[1]} for one with 50; what is sent must not tell how much data there is."
            )


def _silent_clients(problem: Problem, algorithm: Algorithm, fit: Fit) -> None:
    """A client that is not asked keeps its state; a round that nobody answers changes nothing."""
    plan = np.ones((2, len(SIZES)), dtype=bool)
    plan[1, 0] = False
    before, after = (_played(problem, algorithm, count, Schedule(plan)) for count in (1, 2))
    for old, new in zip(jax.tree.leaves(before.at.clients), jax.tree.leaves(after.at.clients), strict=True):
        if not np.array_equal(np.asarray(old)[0], np.asarray(new)[0], equal_nan=True):
            raise FoedusError(f"a client of {name_of(algorithm)} changed in a round in which it was not asked.")


def _resume(problem: Problem, algorithm: Algorithm, fit: Fit) -> None:
    """A run that is interrupted goes on to the bit."""
    whole = _played(problem, algorithm, ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half.ckpt"
        _played(problem, algorithm, ROUNDS // 2, path=path)
        again = _played(problem, algorithm, ROUNDS, path=path)
    for name, column in whole.recorder.columns.items():
        if not np.array_equal(column, again.recorder.columns[name], equal_nan=True):
            raise FoedusError(
                f"a run of {name_of(algorithm)} that was interrupted gives another {name!r} than one that was not: "
                "keep all that a round depends on in the states."
            )


def _counted_bytes(problem: Problem, algorithm: Algorithm, fit: Fit) -> None:
    """The history's bytes are those of the messages' arrays."""
    columns = _played(problem, algorithm, ROUNDS).recorder.columns
    plans = _plans(fit)
    for phase, up, down in zip(columns["phase"], columns["bytes_up"], columns["bytes_down"], strict=True):
        message, reply = plans[0][phase], plans[1][phase]
        expected = (len(SIZES) * packing.size_of(reply), len(SIZES) * packing.size_of(message))
        if (int(up), int(down)) != expected:
            raise FoedusError(
                f"{name_of(algorithm)}: a round counts {int(up)} bytes up and {int(down)} down, but its messages take "
                f"{expected[0]} and {expected[1]}."
            )


def _plans(fit: Fit) -> tuple[list[PyTree], list[PyTree]]:
    """The shapes of the messages and of the replies of each kind of round, as real sites work them out."""
    problem, terms = fit.problem, fit.problem.terms
    own = None if problem.server is None else packing.structure(problem.server)
    one = packing.structure(jax.tree.map(lambda a: a[0], problem.data))
    messages = layout.messages(fit.algorithm, terms, own)
    return messages, layout.replies(fit.algorithm, terms, messages, one)


def _messages(problem: Problem, algorithm: Algorithm, fit: Fit) -> None:
    """Rounds in which every client works for itself, and only bytes pass, give the simulator's iterates."""
    if sound_noise(fit.algorithm) is not None:
        return  # real sites draw noise of their own
    simulated = _played(problem, algorithm, ROUNDS)
    w = np.asarray(over_messages(fit, simulated.recorder.rounds).carry.w)
    there = np.asarray(simulated.at.carry.w)
    if not np.allclose(w, there, rtol=0, atol=SAME * (1.0 + float(np.max(np.abs(there)))), equal_nan=True):
        raise FoedusError(
            f"{name_of(algorithm)} gives another model over messages than in the simulator, by "
            f"{float(np.max(np.abs(w - there))):.2g}: a client must depend on its own state, message and data alone."
        )


def over_messages(fit: Fit, count: int) -> rounds.Play:
    """So many rounds with every client on its own and messages as bytes; the server's state after them."""
    made, problem, terms = fit.algorithm, fit.problem, fit.problem.terms
    message_plans, reply_plans = _plans(fit)
    key, uids = jax.random.key(3), jnp.asarray(problem.stacked.uids())
    start = jnp.zeros(terms.dim)
    data = [jax.tree.map(lambda a, i=i: a[i], problem.data) for i in range(terms.clients)]
    clients = [made.join(terms, d, start) for d in data]
    play = rounds.first_play(fit.few_rounds)(made, terms, start, problem.server)
    local: list[Callable[..., tuple[PyTree, PyTree]]] = [
        jax.jit(lambda c, m, d, k, kind=kind: kind.local(terms, c, m, d, k)) for kind in made.kinds
    ]
    for _ in range(count):
        carry = play.carry
        phase = int(made.phase(carry.server))
        message = rounds.broadcast(fit.few_rounds)(made, terms, phase, carry.server, key, carry.round, uids)
        message = jax.tree.map(np.asarray, message)
        replies = []
        for i, (client, mine) in enumerate(zip(clients, data, strict=True)):
            sent = packing.to_bytes(spine.message_for(message, i), message_plans[phase])
            content = jax.tree.map(jnp.asarray, packing.from_bytes(sent, message_plans[phase]))
            own_key = client_key(round_key(key, LOCAL, carry.round), uids[i])
            clients[i], reply = local[phase](client, content, mine, own_key)
            replies.append(packing.from_bytes(packing.to_bytes(reply, reply_plans[phase]), reply_plans[phase]))
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *replies)
        here, about = np.ones(terms.clients, bool), jnp.full(terms.clients, carry.round)
        play, _ = rounds.aggregate(fit.few_rounds)(made, terms, phase, play, stacked, here, (), about)
    return play
