"""Problem: the clients' data, checked and stacked, together with the terms that all clients agree on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, device_array
from foedus.numerics.interpreter.dispatch import play
from foedus.problem.constraints import Custom, Linear, LossRows, NormBall
from foedus.problem.losses import Loss, as_loss
from foedus.problem.penalties import Penalty
from foedus.problem.regularizers import Regularizer, Zero
from foedus.problem.sizes import ROWS, groups_of
from foedus.problem.stacked import Client, PreparedSites, Stacked, check_labels, check_rows, server_data, stack
from foedus.problem.terms import Constraint, Data, Mask, Shape, Terms
from foedus.problem.weights import FACTOR, Weights, site_weights

REMEDY = 'write skip = "undefined", which leaves it out there and says so, or merge the site with another'


class Problem:
    """A federated problem: minimise Σ ω_i f_i(w) + h(w) subject to constraints, with Σ ω_i = 1.

    Args:
        clients: a list, or a dict by name, of `(X, y)`, `(X, y, group)` or dicts of arrays; or a `Stacked`; or
            what `fd.data.prepare` returns, whose rules then go with the runs.
        loss: a per-example loss of xᵀw, from `fd.losses` or your own elementwise `fn(z, y)`.
        objective: instead of `loss`, any `objective(w, data) -> scalar` in JAX; take means with `data.mean(values)`.
        where: the examples that count in f_i: `fd.label(v)`, `fd.group(v)` or a function of the data giving a mask.
        penalty: a smooth term of each f_i, from `fd.penalties`.
        constraints: from `fd.constraints`.
        regularizer: h, from `fd.regularizers`.
        server: data that the server itself holds, in the form of one client; for constraints of global scope.
        weights: ω: "sites" weighs every client the same, 1/n; "rows" by its number of examples, so that f is the mean
            over all examples, as in a fit on pooled rows; or a number > 0 for each client, by name. Caps on losses stay
            means over a client's own examples, and coupled ones the mean over clients of these.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> problem = fd.Problem(sites, loss=fd.losses.least_squares, penalty=fd.penalties.Ridge(0.1))
        >>> problem
        Problem(2 clients of 2 examples, LeastSquares, 0 constraints)
        >>> problem.names
        ['north', 'south']
    """

    @float64()
    def __init__(
        self,
        clients: "Sequence[Client] | Mapping[str, Client] | Stacked | PreparedSites",
        *,
        loss: "Loss | Callable[[Array, Array], Array] | None" = None,
        objective: Callable[[PyTree, Data], Array] | None = None,
        where: Mask | None = None,
        penalty: Penalty | None = None,
        constraints: Sequence[Constraint] = (),
        regularizer: Regularizer | None = None,
        server: Client | None = None,
        weights: Weights = "sites",
    ):
        if (loss is None) == (objective is None):
            raise FoedusError("a problem needs either loss= or objective=, and not both.")
        self.rules: Any = None  # of preprocessing, which go with the runs
        if isinstance(clients, PreparedSites):
            clients, self.rules = clients.sites, clients.rules
        self.stacked = stack(clients)
        arrays = self.stacked.arrays
        checked_loss = None if loss is None else as_loss(loss)
        if penalty is not None and not isinstance(penalty, Penalty):
            raise FoedusError(f"penalty must come from fd.penalties. Got {penalty!r} instead.")
        if regularizer is not None and not isinstance(regularizer, Regularizer):
            raise FoedusError(f"regularizer must come from fd.regularizers. Got {regularizer!r} instead.")
        if checked_loss is not None:
            check_rows(self.stacked, checked_loss.targets)
            check_labels(self.stacked, checked_loss)
        width = np.shape(arrays["x"])[2] if np.ndim(arrays.get("x", 0)) == 3 else None
        self.data: Data = self.stacked.data()
        self.server: Data | None = None if server is None else server_data(server, width)
        if isinstance(constraints, Constraint):
            raise FoedusError("constraints must be a list: write constraints=[...] around the one you have.")
        with_keys = tuple(
            c.with_key(j, self.names) if isinstance(c, Constraint) else c for j, c in enumerate(constraints)
        )
        for wrong in (c for c in with_keys if not isinstance(c, Constraint)):
            raise FoedusError(f"constraints must come from fd.constraints. Got {wrong!r} instead.")
        if len({c.kind for c in with_keys if c.scope == "coupled"}) > 1:
            raise FoedusError("constraints of coupled scope must be all '<=' or all '=='.")
        self.terms = Terms(
            clients=self.stacked.clients,
            shape=Shape.of(np.zeros(width)) if width is not None else Shape.of(np.zeros(0)),
            loss=checked_loss,
            objective=objective,
            where=where,
            penalty=penalty,
            regularizer=regularizer or Zero(),
            constraints=with_keys,
        )
        if where is not None and not callable(where):
            raise FoedusError(f"where must be fd.label(v), fd.group(v) or a function of the data. Got {where!r}.")
        if where is not None:
            self._check_mask(where, "its objective", "drop or merge the client")
        self._take_weights(weights)
        if (
            width is not None and checked_loss is not None
        ):  # with an own objective, w0 says how many parameters there are
            self.terms.regularizer.check(width)
            self._take_constraints(width)

    def _take_weights(self, weights: Weights) -> None:
        """Put the clients' factors n·ω_i beside their data, where they do not weigh the same."""
        terms = self.terms
        counts = np.asarray(play(jax.vmap(lambda d: jnp.sum(terms.counting(d))), self.data))
        statement, factors = site_weights(weights, self.names, counts)
        if statement is not None and factors is not None:
            self.terms = replace(terms, weights=statement)
            self.data = Data({**self.data, FACTOR: device_array(factors)})

    def _take_constraints(self, dim: int) -> None:
        """Check the constraints against the data, and put the constraints' own arrays beside the data."""
        n, local, own, at_server = self.terms.clients, {}, {}, self.server is not None
        for constraint in self.terms.constraints:
            if constraint.scope == "global":
                if not at_server and not isinstance(constraint, NormBall | Linear):
                    raise FoedusError(
                        f"a {_kind_of(constraint)} of global scope needs data at the server: give Problem(server=...)."
                    )
                own |= {k: device_array(v[0]) for k, v in constraint.arrays(1, dim, ["server"]).items()}
            else:
                local |= {k: device_array(v) for k, v in constraint.arrays(n, dim, self.names).items()}
        self.data = Data({**self.data, **local})
        if own:
            self.server = Data({**(self.server or {"weight": device_array(np.ones(1))}), **own})
        one = self.first_client
        for constraint in self.terms.constraints:
            if isinstance(constraint, LossRows):
                self._check_loss_rows(constraint, dim)
            if constraint.scope != "global":
                names = [name for name in self.names if self._needs_rows(constraint, name)]
                for mask in constraint.masks():
                    self._check_mask(mask, f"its {_kind_of(constraint)}", REMEDY, names)
                continue
            for mask in constraint.masks():
                assert self.server is not None
                key = getattr(mask, "key", None)
                if key is not None and key not in self.server:
                    raise FoedusError(f"the server has no array {key!r}, which {mask} needs; give (X, y, group).")
                if not np.any(np.asarray(self.server["weight"] * mask(self.server)) > 0):
                    which = mask if key is not None else "the chosen property"
                    raise FoedusError(f"server: no example has {which}, so its {_kind_of(constraint)} is undefined.")
        counts = {"local": 0, "global": 0, "coupled": 0}
        for constraint in self.terms.constraints:
            data = one if constraint.scope != "global" else self.server or Data({"weight": np.ones(1)})
            counts[constraint.scope] += len(constraint.labels(self.terms, data))
        self.terms = replace(self.terms, rows=(counts["local"], counts["global"], counts["coupled"]))

    def _check_loss_rows(self, constraint: LossRows, dim: int) -> None:
        """Raise where a constraint on losses lacks X or y, meets an unknown label, or does not fit the length of w."""
        loss, what = constraint.loss_in(self.terms), _kind_of(constraint)
        at_server = constraint.scope == "global"
        data = self.server if at_server else self.data
        if data is None:
            return
        for key in ("x", "y"):
            if key not in data:
                who = "server has" if at_server else "clients have"
                raise FoedusError(f"the {who} no array {key!r}, which a {what} needs.")
        if data["x"].shape[-1] != dim:
            raise FoedusError(
                f"a {what} needs parameters like a row of X, {data['x'].shape[-1]} numbers. Got {dim} instead."
            )
        y = np.asarray(data["y"])
        check_labels(Stacked({"y": y[None]}, names=("server",)) if at_server else self.stacked, loss)

    def _check_custom(self, w0: PyTree) -> None:
        """Raise where a user's own rows are not finite at w0, or depend on the rows that fill up a small client."""
        small = int(np.argmin(self.counts))
        name, w = self.stacked.name(small), self.terms.shape.ravel(w0)
        padded_data = Data({k: np.asarray(v)[small] for k, v in self.data.items()})
        for constraint in self.terms.constraints:
            if not isinstance(constraint, Custom) or constraint.scope == "global":
                continue
            rows = constraint.value(self.terms, w, padded_data)
            if not np.all(np.isfinite(rows)):
                raise FoedusError(f"client {name!r}: a row of Custom is not finite at w0; start elsewhere.")
            for point in (w, w + 0.1) if self.stacked.counts is not None else ():
                pair = (
                    constraint.value(self.terms, point, padded_data),
                    constraint.value(self.terms, point, self.client(small)),
                )
                if np.all(np.isfinite(pair)) and not np.allclose(*pair, rtol=1e-9, atol=1e-12):
                    raise FoedusError(
                        f"client {name!r}: a Custom constraint changes when the client is filled up with rows of "
                        "weight 0; take means over examples with data.mean(values), which leaves them out."
                    )

    @property
    def names(self) -> list[str]:
        """The clients' names; their places, as text, where they have none."""
        return [self.stacked.name(i) for i in range(self.stacked.clients)]

    @property
    def counts(self) -> np.ndarray:
        """The number of examples of each client."""
        return np.sum(np.asarray(self.data["weight"]), axis=1).astype(int)

    @property
    def by_size(self) -> list[tuple[np.ndarray, int]] | None:
        """Clients of similar size, with the rows of the largest of each group; None where that saves little work."""
        plain = self.terms.loss is not None and {*self.data} <= {*ROWS, FACTOR}  # other arrays may have other heights
        return groups_of(self.data, self.counts, self.stacked.rectangles) if plain else None

    @property
    def classes(self) -> tuple[float, ...]:
        """The label of the negative and of the positive class; empty where the loss is none of classification."""
        if self.terms.loss is None or self.terms.loss.kind != "classification" or "y" not in self.stacked.arrays:
            return ()
        y = np.asarray(self.stacked.arrays["y"])
        labels = y[..., 0] if self.terms.loss.targets > 1 else y
        return (-1.0 if np.any(labels == -1.0) else 0.0, 1.0)

    @property
    def first_client(self) -> Data:
        """One client's arrays, filled up as they are: for what depends on their shapes alone."""
        return Data({k: np.asarray(v)[0] for k, v in self.data.items()})

    @float64()
    def over(self, w0: PyTree) -> "Problem":
        """Return this problem with its parameters shaped like `w0`; raise where they do not fit."""
        shape = Shape.of(w0)
        if self.terms.linear and shape != self.terms.shape:
            raise FoedusError(
                f"w0 must be a vector of {self.terms.dim} numbers. Got shapes {list(shape.shapes)} instead."
            )
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(w0)):
            raise FoedusError("w0 has an entry that is not finite.")
        problem = object.__new__(Problem)
        problem.__dict__.update(self.__dict__)
        problem.terms = replace(self.terms, shape=shape)
        problem.terms.regularizer.check(shape.dim)
        if self.terms.objective is not None:
            problem._check_objective(w0)
            problem._take_constraints(shape.dim)
        problem._check_custom(w0)
        return problem

    def with_data(self, data: Data, server: Data | None) -> "Problem":
        """Return this problem with other arrays at the clients and at the server; nothing is checked again."""
        problem = object.__new__(Problem)
        problem.__dict__.update(self.__dict__)
        problem.data, problem.server = data, server
        return problem

    @staticmethod
    def without_data(terms: Terms) -> "Problem":
        """Return the problem that the terms state, for a party that has not read any data yet."""
        problem = object.__new__(Problem)
        nothing = {"weight": np.zeros((terms.clients, 0))}
        problem.terms, problem.stacked, problem.server, problem.rules = terms, Stacked(nothing), None, None
        problem.data = Data({"weight": device_array(np.zeros((terms.clients, 0)))})
        return problem

    def client(self, i: int) -> Data:
        """Return one client's arrays without the rows that only fill the rectangle."""
        count, by_row = int(self.counts[i]), {*self.stacked.arrays, "weight"}
        arrays = {k: np.asarray(v)[i] for k, v in self.data.items()}
        return Data({k: v[:count] if k in by_row else v for k, v in arrays.items()})

    @staticmethod
    def _needs_rows(constraint: Constraint, name: str) -> bool:
        """Whether a constraint is undefined at a client without rows in its subgroups, and not left out there."""
        return not isinstance(constraint, LossRows) or (not constraint.skip and constraint.applies_at(name))

    def _check_mask(self, where: Mask, what: str, remedy: str, names: Sequence[str] | None = None) -> None:
        key = getattr(where, "key", None)
        if key is not None and key not in self.data:
            raise FoedusError(f"the clients have no array {key!r}, which {where} needs; give (X, y, group).")
        counts = play(jax.vmap(lambda d: jnp.sum(d["weight"] * where(d))), self.data)
        empty = [
            name for name, n in zip(self.names, counts, strict=True) if n == 0 and (names is None or name in names)
        ]
        if empty:
            name = empty[0]
            which = where if key is not None else "the chosen property"
            raise FoedusError(f"client {name!r}: no example has {which}, so {what} is undefined; {remedy}.")

    def _check_objective(self, w0: PyTree) -> None:
        """Raise where a user's objective is no finite scalar at w0, or depends on the rows that fill up a client."""
        objective = self.terms.objective
        assert objective is not None
        small = int(np.argmin(self.counts))
        name = self.stacked.name(small)
        data = Data({k: v[small] for k, v in self.data.items()})
        try:
            jax.eval_shape(objective, jax.tree.map(np.asarray, w0), data)
        except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
            raise FoedusError(
                "the objective cannot be differentiated: it uses NumPy, float() or 'if' on values that depend on w or "
                f"on the data ({type(error).__name__}); write it with jax.numpy, as in jnp.log for np.log."
            ) from None
        value = objective(w0, data)
        if jnp.shape(value) != ():
            raise FoedusError(f"client {name!r}: objective must return a scalar. Got shape {jnp.shape(value)} instead.")
        if not np.isfinite(value):
            raise FoedusError(f"client {name!r}: the objective at w0 is {float(value)!r}; expected a finite number.")
        if self.stacked.counts is None:
            return
        # at w0 itself every row may have the same loss, so a second point is tried
        start = Shape.of(w0).ravel(w0)
        for w in (w0, Shape.of(w0).unravel(start + 0.1 * jnp.cos(1.0 + jnp.arange(start.size)))):
            value = objective(w, Data({k: v[small] for k, v in self.data.items()}))
            if not np.isclose(value, objective(w, self.client(small)), rtol=1e-9, atol=1e-12, equal_nan=True):
                raise FoedusError(
                    f"client {name!r}: the objective changes when the client is filled up with rows of weight 0; "
                    "take means over examples with data.mean(values), which leaves them out."
                )

    def __repr__(self) -> str:
        counts = self.counts
        what = self.terms.loss.name if self.terms.loss else getattr(self.terms.objective, "__name__", "objective")
        size = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()}-{counts.max()}"
        constraints = len(self.terms.constraints)
        return f"Problem({self.terms.clients} clients of {size} examples, {what}, {constraints} constraints)"


def _kind_of(constraint: Constraint) -> str:
    words = {"LossCap": "loss cap", "LossGap": "loss gap", "Custom": "constraint"}
    return words.get(type(constraint).__name__, type(constraint).__name__)
