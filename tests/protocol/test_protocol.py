"""The protocol, for every algorithm that foedus exports, also those added later."""

import dataclasses
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL as CONVERGENT
from cases import CASES as ORDINARY
from cases import DIM, NAMES, PRIVATE, ROBUST, VARIANTS, problem

import foedus as fd
from foedus.algorithms.minimax import SPLITTING, Minimax
from foedus.protocol.algorithm import RUNNING, Algorithm, Each, Present, name_of
from foedus.runtime.spine import message_for

CASES = ORDINARY | ROBUST | PRIVATE
ALL = CONVERGENT + [case for cases in (ROBUST | PRIVATE).values() for case in cases]
EXPORTED = {
    name: thing
    for name, thing in ((name, getattr(fd, name)) for name in fd.__all__)
    if isinstance(thing, type) and issubclass(thing, Algorithm)
}
every = pytest.mark.parametrize("case", ALL + VARIANTS, ids=str)
KEY = jax.eval_shape(lambda: jax.random.key(0))
DRAWS = jax.ShapeDtypeStruct((len(NAMES),), float)
START = jax.ShapeDtypeStruct((DIM,), float)


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def fitted(case):
    return case.algorithm.fit(problem(case.problem).over(np.zeros(DIM)))


def resolved(case):
    return fitted(case).algorithm


def one_client(case, rows: int | None = None):
    """The shapes of one client's data, with as many rows as asked for."""
    made = fitted(case).problem
    data = {k: array[0] for k, array in made.data.items()}
    length = made.stacked.rows
    if rows is not None:
        data = {k: jnp.zeros((rows, *v.shape[1:])) if v.shape[:1] == (length,) else v for k, v in data.items()}
    return made, jax.eval_shape(lambda: fd.Data(data))


def states(case, rows: int | None = None):
    """The algorithm, the terms, and the shapes of the server's state, a client's and its data."""
    made, data = one_client(case, rows)
    algorithm, terms = resolved(case), made.terms
    server = jax.eval_shape(lambda w, own: algorithm.init(terms, w, own), START, made.server)
    client = jax.eval_shape(lambda d, w: algorithm.join(terms, d, w), data, START)
    return algorithm, terms, server, client, data


def round_of(algorithm, kind, terms, server, client, data):
    """The shapes of the message one client gets, of its state afterwards, of its reply."""
    message = jax.eval_shape(lambda s, d: message_for(kind.broadcast(terms, s, d), 0), server, DRAWS)
    after, reply = jax.eval_shape(lambda c, m, d, k: kind.local(terms, c, m, d, k), client, message, data, KEY)
    return message, after, reply


def test_every_exported_algorithm_has_a_case():
    assert EXPORTED.keys() == CASES.keys(), "give each algorithm its cases in tests/support/cases.py"
    for name, cases in CASES.items():
        assert cases
        assert all(type(case.algorithm) is EXPORTED[name] for case in cases)


@pytest.mark.parametrize("name", EXPORTED)
def test_settings_are_frozen_keyword_only_and_explained(name):
    kind = EXPORTED[name]
    fields = dataclasses.fields(kind)
    assert all(f.kw_only for f in fields)
    assert all(f.metadata.get("doc") for f in fields), "each setting says what it is"
    with pytest.raises(TypeError):
        kind(1.0)
    algorithm = CASES[name][0].algorithm
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(algorithm, fields[0].name, 0)
    twin = dataclasses.replace(algorithm)
    assert (twin, hash(twin)) == (algorithm, hash(algorithm))
    assert name_of(algorithm) == name
    assert (inspect.getdoc(kind) or "").split("\n")[0].endswith(".")


def out_of_range(field) -> list:
    """Values that a setting must refuse, from its own limits."""
    allowed, wrong = field.metadata["allowed"], []
    limits = {k: v for k, v in allowed.items() if k in ("gt", "ge", "lt", "le")}
    for limit, value in limits.items():
        wrong += {
            "gt": [value, value - 1.0],
            "ge": [value - 1.0, math.nextafter(value, -math.inf)],
            "lt": [value, value + 1.0],
            "le": [value + 1.0, math.nextafter(value, math.inf)],
        }[limit]
    if "whole" in allowed:
        wrong += [2.5]
    if allowed:
        wrong += [float("nan"), "nonsense", np.ones(2)]
    if limits or "whole" in allowed:
        wrong += [True, [1.0]]
    return wrong


SETTINGS = [(name, field.name) for name, kind in EXPORTED.items() for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(("name", "setting"), SETTINGS)
def test_a_setting_out_of_range_gets_a_sentence(name, setting):
    algorithm = CASES[name][0].algorithm
    (field,) = (f for f in dataclasses.fields(algorithm) if f.name == setting)
    wrong = out_of_range(field)
    assert wrong, "every setting has a range or choices"
    for value in wrong:
        with pytest.raises(fd.FoedusError) as caught:
            dataclasses.replace(algorithm, **{setting: value})
        words = str(caught.value)
        assert words.startswith(f"The {setting!r} setting of {name} must be ")
        assert words.endswith(f"Got {value!r} instead.")


@pytest.mark.parametrize(("name", "setting"), SETTINGS)
def test_a_setting_accepts_its_choices_its_default_and_numpys_numbers(name, setting):
    algorithm = CASES[name][0].algorithm
    if isinstance(algorithm, Minimax) and setting in SPLITTING:
        algorithm = dataclasses.replace(algorithm, method="splitting")
    (field,) = (f for f in dataclasses.fields(algorithm) if f.name == setting)
    if field.default is not dataclasses.MISSING:
        assert getattr(dataclasses.replace(algorithm, **{setting: field.default}), setting) == field.default
    for choice in field.metadata["choices"]:
        assert getattr(dataclasses.replace(algorithm, **{setting: choice}), setting) == choice
    if "whole" in field.metadata["allowed"]:
        for three in (3, np.int64(3), 3.0):
            kept = getattr(dataclasses.replace(algorithm, **{setting: three}), setting)
            assert (kept, type(kept)) == (3, int)


@pytest.mark.parametrize("name", EXPORTED)
def test_an_unknown_setting_is_refused(name):
    with pytest.raises(TypeError, match="rhoo"):
        dataclasses.replace(CASES[name][0].algorithm, rhoo=1.0)


@every
def test_the_functions_have_the_protocols_arguments(case):
    algorithm = resolved(case)

    def arguments(function) -> list[str]:
        parameters = inspect.signature(function).parameters.values()
        assert all(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        return [p.name for p in parameters]

    assert arguments(algorithm.init) == ["terms", "w0", "own"]
    assert arguments(algorithm.join) == ["terms", "data", "w0"]
    assert arguments(algorithm.parameters) == ["terms", "server"]
    for function in (algorithm.phase, algorithm.ended, algorithm.report):
        assert arguments(function) == ["server"]
    for kind in algorithm.kinds:
        assert arguments(kind.broadcast) == ["terms", "server", "draws"]
        # the client's state and the message may carry the paper's names
        assert arguments(kind.local)[:1] + arguments(kind.local)[3:] == ["terms", "data", "key"]
        assert arguments(kind.aggregate)[:2] + arguments(kind.aggregate)[3:] == ["terms", "server", "present"]
        hash(kind)


@every
def test_states_keep_their_structure_shapes_and_types(case):
    algorithm, terms, server, client, data = states(case)
    asked = 3
    present = jax.eval_shape(lambda: Present(jnp.arange(asked), jnp.ones(asked, bool)))
    for kind in algorithm.kinds:
        _, after, reply = round_of(algorithm, kind, terms, server, client, data)
        assert jax.tree.structure(after) == jax.tree.structure(client)
        assert shapes(after) == shapes(client)
        replies = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((asked, *leaf.shape), leaf.dtype), reply)
        following = jax.eval_shape(lambda s, r, p, kind=kind: kind.aggregate(terms, s, r, p), server, replies, present)
        assert jax.tree.structure(following) == jax.tree.structure(server)
        assert shapes(following) == shapes(server)


@every
def test_states_and_replies_are_frozen(case):
    algorithm, terms, server, client, data = states(case)
    _, _, reply = round_of(algorithm, algorithm.kinds[-1], terms, server, client, data)
    for state in (server,) if isinstance(reply, jax.ShapeDtypeStruct) else (server, reply):  # a reply may be an array
        assert dataclasses.is_dataclass(state)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(state, dataclasses.fields(state)[0].name, 0)


@pytest.mark.parametrize(
    "case", [case for case in ALL + VARIANTS if not isinstance(case.algorithm, fd.CentralProxAL)], ids=str
)
def test_what_a_client_sends_does_not_depend_on_how_much_it_has(case):
    for index in range(len(resolved(case).kinds)):
        seen = []
        for rows in (3, 50):
            algorithm, terms, server, client, data = states(case, rows)
            message, _, reply = round_of(algorithm, algorithm.kinds[index], terms, server, client, data)
            seen.append((shapes(message), shapes(reply)))
        assert seen[0] == seen[1]


@every
def test_a_message_differs_between_clients_only_where_it_says_so(case):
    """Fields marked Each have one row per client; the others are what every client reads."""
    algorithm, terms, server, _, _ = states(case)
    for kind in algorithm.kinds:
        message = jax.eval_shape(lambda s, d, kind=kind: kind.broadcast(terms, s, d), server, DRAWS)
        for node in jax.tree.leaves(message, is_leaf=lambda n: isinstance(n, Each)):
            if isinstance(node, Each):
                assert all(leaf.shape[0] == terms.clients for leaf in jax.tree.leaves(node))


@every
def test_answers_about_the_server_have_the_right_kind(case):
    algorithm, terms, server, _, _ = states(case)
    model = jax.eval_shape(lambda s: algorithm.parameters(terms, s), server)
    assert (model.shape, model.dtype) == ((terms.dim,), np.dtype(float))
    for name, value in jax.eval_shape(algorithm.report, server).items():
        assert isinstance(name, str)
        assert value.shape == (), "the history holds one number a round"
    ended = jax.eval_shape(lambda s: jnp.asarray(algorithm.ended(s)), server)
    assert ended.shape == ()
    assert ended.dtype == bool or jnp.issubdtype(ended.dtype, jnp.integer)
    phase = jax.eval_shape(lambda s: jnp.asarray(algorithm.phase(s)), server)
    assert phase.shape == ()
    assert jnp.issubdtype(phase.dtype, jnp.integer)
    real = algorithm.init(terms, jnp.zeros(terms.dim), None)
    assert 0 <= int(algorithm.phase(real)) < len(algorithm.kinds)
    assert int(algorithm.ended(real)) == RUNNING


def test_a_setting_of_an_algorithm_with_no_family_is_checked_too():
    """The decorator does its work on a class that inherits from Algorithm itself."""
    from foedus.base.settings import setting, settings

    @settings
    class Alone(Algorithm):
        rho: float = setting(1.0, "penalty", gt=0)

    assert Alone(rho=2).rho == 2.0
    with pytest.raises(fd.FoedusError, match=r"The 'rho' setting of Alone must be a number > 0\. Got -1\.0 instead"):
        Alone(rho=-1.0)
