"""The end of a simulated run: what is measured at its clients, and what their states say of a worst case."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.certificate import SitePart, needs_products, site_parts, widened
from foedus.constrained import tolerances
from foedus.interpreter.dispatch import play
from foedus.pooled import Pooled
from foedus.pytrees import PyTree, device_array
from foedus.robust.proposal import Proposal
from foedus.robust.stress import Robust
from foedus.runtime import spine
from foedus.runtime.bins import by_client
from foedus.runtime.masking import Masking, check_range, fields_of
from foedus.runtime.spine import Carry, Job
from foedus.summed_certificate import SummedPart, as_one_part, summed_part, unseen_of
from foedus.terms import Data
from foedus.wide_gap import Ask, ask_here


def proposals_of(job: Job, carry: Carry, clients: PyTree, data: PyTree) -> Sequence[Proposal] | None:
    """Return what a robust algorithm's states say of the worst case at each client."""
    algorithm, terms = job.fit.algorithm, job.fit.problem.terms
    if not isinstance(algorithm, Robust):
        return None
    server, states = jax.tree.map(np.asarray, (carry.server, clients))
    return algorithm.propose(terms, server, by_client(states, data, terms.clients))


def conclusion(job: Job, carry: Carry, clients: PyTree) -> spine.Conclusion:
    """Return the conclusion for the problem as the user stated it, which a pooled run restates."""
    algorithm, run_on, problem = job.fit.algorithm, job.fit.problem, job.problem
    multipliers = spine.server_multipliers(algorithm, run_on.terms, carry)
    mu = device_array(np.zeros((problem.terms.clients, problem.terms.rows[0])))
    if multipliers:
        mu = play(jax.vmap(lambda client: spine.client_multipliers(algorithm, run_on.terms, client)), clients)
        if isinstance(run_on, Pooled):
            by_site = run_on.by_site({"local": mu} | {k: device_array(v) for k, v in multipliers.items()})
            mu = by_site.pop("local")
            multipliers = {k: np.asarray(v) for k, v in by_site.items()}
    nu = device_array(multipliers.get("coupled", np.zeros(problem.terms.rows[2])))
    one = problem.first_client
    each = site_parts(problem.terms, carry.w, mu, nu, problem.data)
    parts = each if job.masking is None else summed_parts(job, each)
    end = spine.conclude(
        algorithm, problem.terms, problem.names, carry, parts, one, problem.server, multipliers,
        reason_names=run_on.names,
    )  # fmt: skip
    if not end.finite or not needs_products(problem.terms):
        return end
    terms, w, slack = problem.terms, device_array(carry.w), 0.0
    if job.masking is None:
        ask = ask_here(terms, w, mu, nu, problem.data, problem.by_height)
    else:
        assert isinstance(parts, SummedPart)
        ask, slack = _masked_ask(job, mu, nu, w), unseen_of(terms, parts).slack
        each = as_one_part(parts, terms.clients)
    certificate = widened(end.certificate, terms, problem.server, w, each, multipliers, ask, slack)
    return replace(end, certificate=certificate)


def _masked_ask(job: Job, mu: Array, nu: Array, w: Array) -> Ask:
    """Return the question of a server that sees sums alone: the answers are the same integers as over real sites."""
    assert job.masking is not None
    measuring, terms = job.masking.measuring, job.problem.terms
    add_up = partial(_add_up, measuring, terms.clients)
    ask = ask_here(terms, w, mu, nu, job.problem.data, add_up=add_up)

    def ask_for_sum(kind: str, V: np.ndarray) -> np.ndarray:
        total, worst = ask(kind, V)
        check_range(measuring, worst, job.problem.names, fields_of(total), "part of the gap")
        return total

    return ask_for_sum


def _add_up(measuring: Masking, n: int, each: Array) -> tuple[Array, Array]:
    return measuring.add_up(each, jnp.ones(n, bool))


def summed_parts(job: Job, parts: SitePart) -> SummedPart:
    """Return what a server that sees sums alone learns of the measurement: the same integers as over real sites."""
    masking, (_, eps2) = job.masking, tolerances(job.fit.algorithm)
    assert masking is not None
    terms = job.problem.terms
    one = Data({k: v[0] for k, v in job.problem.data.items()})
    rows = jax.vmap(lambda part: summed_part(terms, part, eps2, one))(parts)
    total, worst = masking.measuring.add_up(rows, jnp.ones(terms.clients, bool))
    names, what = job.problem.names, "part of the certificate"
    check_range(masking.measuring, np.asarray(worst), names, fields_of(rows), what)
    return total
