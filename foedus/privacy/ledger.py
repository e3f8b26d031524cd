"""The privacy ledger: what each client released in each round, with how much noise, and what it adds up to."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.notebook import html_of, text_table
from foedus.privacy import composition
from foedus.privacy.noise import NEIGHBOURS, Noise, Sound

TIGHT = "tight"  # the method of the headline figure: the tightest total that is proved
SIMULATED = (
    "SIMULATED: the noise was drawn from a seed, in a process that holds all data, and has protected nobody; these are "
    "the figures that real sites with sampler='opendp' would have"
)
NOT_TOLD = "not told"
DELTA = 1e-5  # at which totals are given where no total was asked for; a usual choice, below 1/(number of examples)
SHOWN = 12  # clients in the printed table


@dataclass(frozen=True)
class LedgerEntry:
    """One release: who, when (from 1; 0 is before the training), and with what noise; ε and δ are of it alone.

    Sensitivity and scale are NaN where a site has kept them to itself.
    """

    client: str
    round: int
    released: str
    sensitivity: float
    scale: float
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Ledger:
    """Every release of a run. Print it to read it; `total` says what a client has spent.

    `sensitivity` and `scale` are what the clients used, (rounds, clients): 0 where nothing was released, and NaN where
    a real site does not tell them; their quotient is then the one that the settings fix. `before` are the releases
    that prepared the data; their ε is the same for both kinds of neighbours. `after` are releases about rows that are
    held out of training, which cost the rows that train the model nothing.

    Example:
        >>> import foedus as fd, numpy as np
        >>> problem = fd.Problem([(np.eye(2), np.array([1.0, 2.0]))] * 2, loss=fd.losses.least_squares)
        >>> noise = fd.Laplace(epsilon=0.5, clip=1.0)
        >>> ledger = fd.solve(problem, fd.FedAvg(k0=1, lr=0.1), max_rounds=3, privacy=noise).ledger
        >>> len(ledger.entries("0")), round(ledger.total("0"), 6)
        (3, 1.5)
    """

    noise: Json  # the kind of noise, its settings, and the promise of one release in words
    names: tuple[str, ...]
    counts: tuple[int, ...]  # examples of each client; public, and -1 where a site has not told
    sensitivity: np.ndarray
    scale: np.ndarray
    what: str  # what is released
    most: int | None = None
    delta: float = DELTA  # at which totals are printed
    counted: np.ndarray | None = None  # releases of each round and client, where it is not one for each scale
    before: tuple[LedgerEntry, ...] = ()
    exact: tuple[str, ...] = ()  # columns about which exact figures were sent before the training
    after: tuple[LedgerEntry, ...] = ()  # about rows that took no part in training

    @property
    def sound(self) -> bool:
        """Whether the releases have a guarantee."""
        return bool(self.noise["sound"])

    @property
    def simulated(self) -> bool:
        """Whether the noise was drawn from a seed, which protects nobody."""
        return self.sound and self.noise.get("sampler") == "simulation"

    @property
    def made(self) -> np.ndarray:
        """How many releases each client made in each round, (rounds, clients)."""
        return (self.scale > 0).astype(int) if self.counted is None else self.counted

    @property
    def releases(self) -> np.ndarray:
        """How often each client has released, (clients,)."""
        return np.sum(self.made, axis=0)

    def entries(self, client: str | None = None) -> list[LedgerEntry]:
        """Return the releases in order, those about rows held out of training last.

        Args:
            client: the name of the client; all clients when left out.
        """
        if client is not None and client not in self.names:
            raise FoedusError(f"the ledger has no client {client!r}; there are {', '.join(self.names[:5])} ….")
        clients = range(len(self.names)) if client is None else [self.names.index(client)]
        return (
            [entry for entry in self.before if client in (None, entry.client)]
            + [
                LedgerEntry(
                    self.names[i],
                    int(r) + 1,
                    self.what,
                    float(self.sensitivity[r, i]),
                    float(self.scale[r, i]),
                    self.noise["epsilon"],
                    self.noise["delta"],
                )
                for r in range(len(self.scale))
                for i in clients
                for _ in range(int(self.made[r, i]))
            ]
            + [entry for entry in self.after if client in (None, entry.client)]
        )

    def total(
        self, client: str | int, method: str = "basic", *, neighbours: str | None = None, delta: float | None = None
    ) -> float:
        """Return the total ε of one client, from the sensitivities and scales it used.

        It is that of one row. A row either trains the model or is held out, so the larger of both totals counts.

        Args:
            client: its name or place.
            method: "tight", the least total that is proved, preparation included; or "basic", "advanced", "rdp" or
                "pld". All but basic composition of Laplace noise hold at δ.
            neighbours: "replace" or "add-or-remove"; the noise's own when left out.
            delta: the ledger's own when left out.

        Returns:
            The total ε at this δ.
        """
        if not self.sound:
            raise FoedusError("this noise has no formal guarantee, so there is no total epsilon.")
        relation = neighbours or self.noise["neighbours"]
        methods = (TIGHT, *composition.METHODS)
        if relation not in NEIGHBOURS or method not in methods:
            raise FoedusError(f"the ledger knows {NEIGHBOURS} and {methods}. Got {relation!r}, {method!r}.")
        i = self.names.index(client) if isinstance(client, str) else client
        # Every sensitivity is proportional to what one example can change in the sum of clipped gradients, which is 2C
        # where one is replaced and C where one is left out: so the ratio for one relation gives that for the other.
        factor = {"replace": 2.0, "add-or-remove": 1.0}
        times = factor[relation] / factor[self.noise["neighbours"]]
        times = times if self.noise.get("halves", True) else max(times, 1.0)
        kind, at = self.noise["kind"].lower(), self.delta if delta is None else delta
        here = self.made[:, i] > 0
        ratios = composition.tally_ratios(zip(times * self._ratios(i)[here], self.made[here, i], strict=True))
        if method == TIGHT:
            own = (entry for entry in self.before if entry.client == self.names[i])
            before = composition.tally_ratios((entry.epsilon, 1) for entry in own)
            mixture = Counter({(kind, ratio): count for ratio, count in ratios.items()})
            mixture.update({("laplace", ratio): count for ratio, count in before.items()})
            return max(composition.tightest(mixture, at), self.evaluated(i, method, at))
        return max(composition.total(kind, ratios, at, method) + self.prepared(i), self.evaluated(i, method, at))

    def _ratios(self, client: int) -> np.ndarray:
        """Return sensitivity over scale of a client's release in each round; the settings' own where it is unknown."""
        sensitivity, scale = self.sensitivity[:, client], self.scale[:, client]
        is_known = scale > 0
        return np.where(is_known, sensitivity / np.where(is_known, scale, 1.0), self.noise.get("ratio", np.inf))

    def prepared(self, client: int) -> float:
        """Return the ε that preparing the data cost one client: the sum over its releases before the training."""
        return sum(entry.epsilon for entry in self.before if entry.client == self.names[client])

    def evaluated(self, client: int, method: str = TIGHT, delta: float | None = None) -> float:
        """Return the total ε of a client's rows that are held out of training; 0 where nothing was said of them."""
        own = [entry for entry in self.after if entry.client == self.names[client]]
        if not own:
            return 0.0
        at, kind = self.delta if delta is None else delta, "gaussian" if own[0].delta > 0 else "laplace"
        ratios = composition.tally_ratios((entry.sensitivity / entry.scale, 1) for entry in own)
        if method == TIGHT:
            return composition.tightest({(kind, ratio): count for ratio, count in ratios.items()}, at)
        return composition.total(kind, ratios, at, method)

    def _notes_beside(self, first: int) -> list[str]:
        """What was sent before the training, and about rows held out of it."""
        notes, source = [], ", drawn from the seed, for simulation only" if self.simulated else ""
        if self.before:
            figures = sum(entry.client == self.names[first] for entry in self.before)
            notes.append(
                f"epsilon {self.prepared(first):.4g} of every total went to preparing the data, before the training: "
                f"{figures} figures of each client with Laplace noise{source}"
            )
        if self.exact:
            columns = ", ".join(self.exact[:3]) + (" …" if len(self.exact) > 3 else "")
            notes.append(
                f"NOT covered: to prepare the data, clients sent exact sums, ranges or words of {len(self.exact)} "
                f"columns ({columns}); state bounds and categories in [preprocess], with an epsilon, to cover them"
            )
        if further := sorted({entry.client for entry in self.after} - {*self.names}):
            notes.append(
                f"beside that, figures about {', '.join(further)} were released; no total counts these other rows"
            )
        if self.evaluated(first):
            figures = sum(entry.client == self.names[first] for entry in self.after)
            notes.append(
                f"epsilon {self.evaluated(first):.4g} at delta {self.delta:g} of the rows that are held out of "
                f"training went to the evaluation: {figures} releases of each client{source}; a row is either trained "
                "on or held out, by its place in the table, so a total is the larger of both and not their sum"
            )
        return notes

    def summary(self, measured: bool = True) -> str:
        """Return the privacy of the run in a line or two.

        Args:
            measured: whether the run has an objective and a certificate, of which the summary then speaks.
        """
        if not self.sound:
            return f"privacy: {self.noise['words']}"
        worst = int(np.argmax(self.releases)) if self.releases.size else 0
        caveat = "SIMULATED " if self.simulated else ""
        line = f"privacy: {caveat}epsilon {self.total(worst, TIGHT):.4g} at delta {self.delta:g} in all for each client"
        if self.noise.get("total"):
            line += f" (asked for: epsilon {self.noise['total'][0]:g}, delta {self.noise['total'][1]:g})"
        line += f", by the tightest composition that is proved; {self.total(worst):.4g} by basic composition"
        line += " at delta 0" if self.noise["kind"] == "Laplace" and self.delta > 0 else ""
        line += f"; {self.noise['words']}"
        if self.before:
            line += f"; epsilon {self.prepared(worst):.4g} of it, by basic composition, went to preparing the data"
        if self.exact:
            line += "; what was sent to prepare the data was exact, and is not covered"
        if self.evaluated(worst):
            line += f"; epsilon {self.evaluated(worst):.4g} of the rows held out of training went to the evaluation"
        if self.most is not None:
            line += f"; {int(np.sum(self.releases >= self.most))} of {len(self.names)} clients have spent their budget"
        lines = [line]
        if measured:
            lines.append("objective and certificate are measured on the data, outside the protocol and its guarantee")
        return "\n".join([*lines, SIMULATED] if self.simulated else lines)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(str(self))

    def _lines(self) -> list[str]:
        head = [f"Privacy ledger: {self.noise['words']}", f"released: {self.what}"]
        if not self.sound:
            return [
                *head,
                f"nominal epsilon {self.noise['epsilon']:g} a release: no formal guarantee, so no total is given",
            ]
        if self.noise.get("total"):
            epsilon, delta = self.noise["total"]
            head.append(f"asked for: epsilon {epsilon:g}, delta {delta:g} in all for each client")
        if self.simulated:
            head.append(SIMULATED)
        methods = (TIGHT, *(composition.METHODS if composition.have_library() else ("basic", "advanced")))
        columns = ["client", "examples", "releases", "sensitivity", "noise scale"]
        columns += [f"{m}, {short}" for short in ("replace", "leave out") for m in methods]
        order = np.argsort(-self.releases, kind="stable")
        rows = []
        for i in order[:SHOWN]:
            here = self.made[:, i] > 0
            examples = str(self.counts[i]) if self.counts[i] >= 0 else NOT_TOLD
            row = [self.names[i], examples, str(int(self.releases[i]))]
            row += [_range(self.sensitivity[here, i]), _range(self.scale[here, i])]
            row += [f"{self.total(int(i), m, neighbours=n):.4g}" for n in NEIGHBOURS for m in methods]
            rows.append(row)
        table = text_table(columns, rows)
        more = len(self.names) - len(rows)
        notes = [f"and {more} further clients, none with more releases"] if more > 0 else []
        basic = "basic holds at delta 0" if self.noise["kind"] == "Laplace" else "basic splits delta among the releases"
        notes += [
            f"total epsilon of a client by composition method, at delta {self.delta:g} ({basic}; tight is the least "
            "that is proved); replace: one example is replaced by another; leave out: one example's contribution is "
            "left out, the number of examples kept fixed",
            "the number of examples of each client, the settings and who took part are treated as public",
            "no amplification by sampling is claimed: who takes part in a round is not secret",
            "covered is what clients send in the protocol; an objective or certificate printed beside it is not",
        ]
        notes += self._notes_beside(int(order[0]))
        if self.most is not None:
            finished = int(np.sum(self.releases >= self.most))
            notes.append(
                f"budget: {self.most} releases a client; {finished} of {len(self.names)} clients have spent theirs"
            )
        return [*head, *table, *[f"- {note}" for note in notes]]

    def save(self, path: Path) -> None:
        """Write the ledger into one file."""
        from foedus.base.files import pack, write_whole

        note = {"noise": self.noise, "names": list(self.names), "counts": list(self.counts), "what": self.what}
        note |= {"most": self.most, "delta": self.delta, "exact": list(self.exact)}
        note |= {key: [asdict(entry) for entry in getattr(self, key)] for key in ("before", "after")}
        arrays = {"sensitivity": self.sensitivity, "scale": self.scale}
        arrays |= {} if self.counted is None else {"counted": self.counted}
        write_whole(path, pack(arrays, note))

    @staticmethod
    def load(path: Path) -> "Ledger":
        """Read a ledger that `save` wrote."""
        from foedus.base.files import unpack

        arrays, note = unpack(path.read_bytes())
        note |= {"names": tuple(note["names"]), "counts": tuple(note["counts"]), "exact": tuple(note.get("exact", ()))}
        note |= {key: tuple(LedgerEntry(**entry) for entry in note.get(key, ())) for key in ("before", "after")}
        return Ledger(
            **note,
            sensitivity=arrays["sensitivity"],
            scale=arrays["scale"],
            counted=arrays.get("counted"),
        )


def _range(values: np.ndarray) -> str:
    if len(values) == 0:
        return "-"
    if np.any(np.isnan(values)):
        return NOT_TOLD
    low, high = values.min(), values.max()
    return f"{high:.3g}" if high <= low * (1 + 1e-9) else f"{low:.3g} to {high:.3g}"


def ledger_of(
    noise: Noise | None,
    history: dict[str, np.ndarray],
    names: list[str],
    counts: np.ndarray,
    what: str = "each client's noisy parameters, in each round",
) -> Ledger | None:
    """Return the ledger of a run, from the history's columns `ledger.*`, which are taken out of the history.

    A real site tells how often it has released, and does not tell the sensitivity and the scale.
    """
    nothing = np.zeros((0, len(names)))
    count = history.pop("ledger.releases", nothing)
    untold = np.full(np.shape(count), np.nan)
    sensitivity, scale = (history.pop(f"ledger.{key}", untold) for key in ("sensitivity", "scale"))
    if noise is None:
        return None
    releases = np.maximum(np.diff(np.asarray(count), axis=0, prepend=0), 0).astype(int)
    # the columns repeat a client's last release until its next one; only the round of a release counts
    sensitivity, scale = np.where(releases > 0, sensitivity, 0.0), np.where(releases > 0, scale, 0.0)
    kind = noise.kind if isinstance(noise, Sound) else type(noise).__name__
    record: Json = {"kind": kind, "words": str(noise), "epsilon": noise.epsilon}
    record |= {"sound": noise.sound, "delta": getattr(noise, "delta", 0.0)}
    if isinstance(noise, Sound):
        record |= {"neighbours": noise.neighbours, "clip": noise.clip, "rows": noise.rows, "sampler": noise.sampler}
        record |= {"ratio": 1.0 / noise.multiplier, "total": noise.total, "halves": noise.halves}
    most = noise.most if isinstance(noise, Sound) else None
    delta = noise.total[1] if isinstance(noise, Sound) and noise.total is not None else DELTA
    what = noise.released if isinstance(noise, Sound) else what
    examples = tuple(int(c) for c in counts)
    return Ledger(record, tuple(names), examples, sensitivity, scale, what, most, delta, releases)
