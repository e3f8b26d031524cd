"""Approval: with `approve = "ask"` in the site file an experiment waits until a person at the site has said yes.

A request is a file in the site's folder: what is asked in plain words, and what was decided. The decision is about one
statement, to the letter: a digest of all that the greeting states, whatever that is. A server that changes anything
afterwards is asking anew. Where tables are prepared first, the terms are stated before anybody knows the columns'
numbers; what comes of them is worked out here once more and compared (`check_same`).
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.base.quantities import count
from foedus.federation import spec
from foedus.federation.agreement import statement
from foedus.federation.holdout import Holdout
from foedus.federation.packing import one_line
from foedus.federation.policy import Policy, Refusal
from foedus.federation.site_ledger import Release, SiteLedger, total_of
from foedus.privacy.central import NoiseShares
from foedus.privacy.noise import Noise, Sound
from foedus.problem.terms import Constraint, Terms
from foedus.protocol.algorithm import Algorithm, name_of

FOLDER = "requests"
LONGEST_STATEMENT = 20_000  # characters that are shown of it; the digest is of all
WAITING, APPROVED, REFUSED = "waiting", "approved", "refused"


@dataclass(frozen=True)
class Statement:
    """What an experiment asks of a site, in words and numbers; a person's decision is about exactly this."""

    run: str
    algorithm: str
    rounds: int
    sites: int
    loss: str
    terms: tuple[str, ...]
    columns: tuple[str, ...] = ()
    letter: str = ""  # all that is stated (`agreement.statement`)
    noise: Noise | None = field(default=None, compare=False)  # of the rounds, for the summary
    preparation: float = 0.0  # the epsilon of what is sent before the first round
    holdout: Json | None = None  # the rows that are kept out of training, and what is told about them at the end
    errors: str | None = None  # how standard errors are computed, where sums for them are asked for at the end
    roles: Json | None = field(default=None, compare=False)  # of the columns; with `holdout` they name its rows

    @staticmethod
    def of_table(header: Json, algorithm: Algorithm, letter: str) -> "Statement":
        """Return the statement of a run whose sites prepare tables; `letter` is its plan to the letter."""
        roles, problem = header["roles"], header["problem"]
        columns = [f"label {roles['label']}"] + ([f"group {roles['group']}"] if roles["group"] else [])
        columns.append("features " + (", ".join(map(str, roles["features"])) if roles["features"] else "all others"))
        epsilon = header["noise"]["epsilon"] if header["noise"] else 0.0
        return Statement(
            **_common(header, algorithm, int(header["sites"]), letter),
            loss=str(problem["loss"]),
            terms=tuple(sorted(map(str, problem["terms"]))),
            columns=tuple(columns),
            preparation=float(epsilon),
            holdout=header.get("holdout"),
            roles=roles,
        )

    @staticmethod
    def of_terms(header: Json, algorithm: Algorithm, terms: Terms) -> "Statement":
        """Return the statement of a run whose terms are all known."""
        words = terms_in_words(terms)
        return Statement(
            **_common(header, algorithm, terms.clients, statement(header)),
            loss=words["loss"],
            terms=tuple(words["terms"]),
        )

    @property
    def id(self) -> str:
        """A digest of everything stated, by which a person names the request."""
        return hashlib.sha256(self.letter.encode()).hexdigest()[:24]

    def summary(self, policy: Policy, ledger: SiteLedger) -> list[str]:
        """Return the request in plain language, line by line; what is copied from a message cannot add a line."""
        lines = [one_line(line) for line in self._summary(policy, ledger)]
        return [*lines, one_line(f"Stated in full: {self.letter}", LONGEST_STATEMENT)]

    def _summary(self, policy: Policy, ledger: SiteLedger) -> list[str]:
        lines = [
            f"The coordinator of the federation asks for the run {self.run}, over {count(self.sites, 'site')}.",
            f"Columns: {'; '.join(self.columns)}." if self.columns else "Columns: the arrays of the site's data file.",
            f"Algorithm: {self.algorithm}, at most {count(self.rounds, 'round')}; loss: {self.loss}.",
            f"Terms: {'; '.join(self.terms)}." if self.terms else "Terms: none beside the loss.",
        ]
        holdout = Holdout.from_json(self.holdout)
        lines += _holdout_in_words(holdout)
        if self.errors is not None:
            lines.append(
                f"Standard errors ({self.errors}): at the end sums of products of columns and of residuals leave, over "
                "the rows that train."
            )
        if not isinstance(self.noise, Sound):
            return [
                *lines,
                "What leaves: exact figures of the size of the model, such as gradients, in each round, and the value "
                "of the loss. There is no noise, so no epsilon bounds what they tell about one row.",
            ]
        noise = self.noise
        one = Release("", noise.kind.lower(), 1.0, noise.multiplier, noise.neighbours, noise.delta)
        training, held_out = (holdout.rows(part, self.roles or {}) for part in ("training", "held-out"))
        releases = [replace(one, rows=training)] * self.rounds
        if self.preparation:
            releases.append(Release("", "laplace", self.preparation, 1.0, rows=training))
        if (evaluation := holdout.release(held_out)) is not None:
            releases.append(evaluation)
        leaves = "parameters of the size of the model, with noise added here, in each round; nothing exact."
        if isinstance(noise, NoiseShares):
            leaves = (
                "masked sums over all sites, in each round, to which a share of the noise is added here; the sum is "
                f"protected as long as at least {noise.sites - noise.tolerate} of the {noise.sites} sites do not "
                "collude with the server."
            )
        at = policy.max_delta
        now, before, after = total_of(releases, at), ledger.total(at), ledger.total(at, None, releases, self.run)
        return [
            *lines,
            f"What leaves: {leaves}",
            f"Privacy: epsilon {now:.4g} by this run and {after:.4g} in all with it "
            f"({before:.4g} so far; limit {policy.max_epsilon_total:g}), at delta {at:g}, for replacing one row.",
        ]


def _holdout_in_words(holdout: Holdout) -> list[str]:
    lines = []
    if holdout.evaluates:
        noise = holdout.noise
        what = "at the end sums and histograms of the model's scores and losses on them leave"
        if noise is not None:
            what += f", with noise added here (epsilon {noise.epsilon:g}, delta {noise.delta:g} of each of these rows)"
        lines.append(f"Evaluation: {100 * holdout.shares.evaluate:g} % of the rows are held out of training; {what}.")
    for term in holdout.rates:
        lines.append(
            f"Threshold: {100 * holdout.shares.threshold:g} % of the other rows are kept out for the {term.title}; "
            "their number, yes or no to thresholds, and the number of wrong answers at the last one leave."
        )
    return lines


def _common(header: Json, algorithm: Algorithm, sites: int, letter: str) -> Json:
    return {
        "run": str(header["run"]),
        "algorithm": name_of(algorithm),
        "rounds": int(header["max_rounds"]),
        "sites": sites,
        "letter": letter,
        "errors": header.get("summary"),
        "noise": getattr(algorithm, "noise", None),
    }


def terms_in_words(terms: Terms) -> Json:
    """Return the loss and the terms of a problem in words; coordinator and site must find the same ones."""
    loss = terms.loss.name if terms.loss is not None else getattr(terms.objective, "__name__", "an objective")
    return {"loss": loss, "terms": sorted(map(constraint_in_words, terms.constraints))}


def constraint_in_words(constraint: Constraint) -> str:
    """Return the kind of a constraint, its scope and its limit in words."""
    limit = getattr(constraint, "limit", None)
    if isinstance(limit, Mapping):
        limit = {str(name): float(value) for name, value in sorted(limit.items())}
    elif limit is not None:
        limit = float(limit)
    return f"{type(constraint).__name__}, {constraint.scope}" + ("" if limit is None else f", at most {limit}")


SETTLED = ("clip", "rows")  # settings of a noise that depend on the number of columns; its strength does not


def strength(noise: Noise | None) -> Json | None:
    """Return all that is stated of a noise but for what depends on the number of columns."""
    record = spec.encode(noise)
    if not isinstance(record, dict):
        return None
    return record | {"fields": {name: value for name, value in record["fields"].items() if name not in SETTLED}}


@dataclass(frozen=True)
class ApprovalRequest:
    """A request in the site's folder, with what a person has decided about it."""

    id: str
    run: str
    summary: list[str]
    decision: str = WAITING
    time: str = ""


class Approvals:
    """The requests of one site."""

    def __init__(self, folder: Path):
        self.folder = folder / FOLDER

    def require(
        self, policy: Policy, statement: Statement, ledger: SiteLedger, more: Callable[[], list[str]] = list
    ) -> None:
        """Return where no approval is needed or a person has approved; else write the request down and refuse.

        `more` returns further lines for the person; it is called once for a request.
        """
        if policy.approve != "ask":
            return
        request = self._load(statement.id)
        if request is None:
            now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
            summary = [*map(one_line, more()), *statement.summary(policy, ledger)]
            request = ApprovalRequest(statement.id, statement.run, summary, time=now)
            self._save(request)
        self._demand(request)

    def _demand(self, request: ApprovalRequest) -> None:
        if request.decision == REFUSED:
            raise Refusal("policy", "a person at the site has refused this experiment")
        if request.decision != APPROVED:
            raise Refusal("waiting", f"it waits for the approval of a person at the site (request {request.id})")

    def decide(self, id: str, decision: str) -> ApprovalRequest:
        """Record what a person at the site has decided, and return the request."""
        request = self._load(id)
        if request is None:
            ids = ", ".join(r.id for r in self.all()) or "none"
            raise FoedusError(f"there is no request {id!r}; there are: {ids}.")
        request = replace(request, decision=decision)
        self._save(request)
        return request

    def all(self) -> list[ApprovalRequest]:
        """Return all requests, oldest first."""
        paths = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        requests = [request for path in paths if (request := self._load(path.stem)) is not None]
        return sorted(requests, key=lambda request: request.time)

    def _load(self, id: str) -> ApprovalRequest | None:
        path = self.folder / f"{id}.json"
        if not id.isalnum() or not path.is_file():
            return None
        try:
            return ApprovalRequest(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            raise FoedusError(f"the request {path} is damaged; delete it, and it will be asked anew.") from None

    def _save(self, request: ApprovalRequest) -> None:
        self.folder.mkdir(exist_ok=True, mode=0o700)
        content = json.dumps(asdict(request), indent=1).encode()
        write_whole(self.folder / f"{request.id}.json", content, private=True)
