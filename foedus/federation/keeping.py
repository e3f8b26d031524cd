"""Checkpoints of a federated run: every site saves its state first, then the server saves its own."""

import json
from pathlib import Path
from typing import TypeVar

import numpy as np

from foedus.base.errors import FoedusError
from foedus.federation import packing, spec
from foedus.federation.exchange import Exchange
from foedus.federation.order import Order
from foedus.runtime.checkpoint import Checkpoint, fingerprint
from foedus.runtime.spine import Recorder

CHECKPOINTS = 2  # how many are kept

T = TypeVar("T")


class ServerCheckpoints:
    """The checkpoints of one run, in a folder of the server's."""

    def __init__(self, order: Order, folder: Path, exchange: Exchange):
        self.order, self.folder, self.exchange = order, folder, exchange
        self.rounds: list[tuple[int, np.ndarray]] = []  # of each checkpoint: its round, and each client's last one
        statement = [spec.encode(order.algorithm), spec.encode(order.terms), order.seed, list(order.names)]
        self.mark = fingerprint(json.dumps(statement, sort_keys=True), order.w0)

    def files(self) -> list[Path]:
        """Return the files of the checkpoints, newest first."""
        return sorted(
            self.folder.glob("server-*.ckpt"), key=lambda p: int(p.stem.removeprefix("server-")), reverse=True
        )

    def keep(self, play: object, round: int, last: np.ndarray, recorder: Recorder) -> None:
        """Have every site save its state, then save the server's; `last` is each client's last accepted round.

        The server's comes last: a checkpoint is worth something only where every site can go back to the same round.
        The sites keep the states of the checkpoint before as well (`needed`), for a crash may come in between.
        """
        exchange, newest = self.exchange, self.rounds[:1]
        messages = {}
        for i, site in enumerate(self.order.sites):
            rounds_to_keep = sorted({int(rounds[i]) for _, rounds in newest})
            messages[site] = packing.seal(exchange.header("keep") | {"since": int(last[i]), "needed": rounds_to_keep})
        answers = exchange.ask(messages, exchange.patience.timeout)
        for site in self.order.sites:
            header, _ = exchange.open_reply(site, answers.get(site), "keep", None)
            if header is None:
                exchange.note(
                    f"no checkpoint after round {round}: client {exchange.client[site]!r} has not kept its state"
                )
                return
        try:
            Checkpoint(self.folder / f"server-{round}.ckpt", self.mark).keep(play, recorder.columns, final=True)
        except FoedusError as error:  # a full disk must not end a run that can go on
            exchange.note(str(error))
            return
        self.rounds = [(round, last.copy()), *self.rounds][:CHECKPOINTS]
        for old in self.files()[CHECKPOINTS:]:
            old.unlink(missing_ok=True)

    def load(self, path: Path, fresh: T) -> tuple[T, dict[str, np.ndarray]] | None:
        """Return the state and the history in a file, or None where it is damaged."""
        try:
            return Checkpoint(path, self.mark).load(fresh)
        except FoedusError as error:
            self.exchange.note(f"{error} The one before is tried.")
            return None
