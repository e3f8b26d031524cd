"""The screen of a run while it goes: a live table for a person, one JSON line an event for a program, or nothing."""

import json
import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from foedus.base.files import Json
from foedus.base.quantities import duration, size


class Screen:
    """Shows runs while they go; `mode` is "live", "quiet" or "json"."""

    def __init__(self, mode: str = "live", console: Console | None = None):
        self.mode = mode
        self.console = console or Console(markup=False, highlight=False)
        self.live: Live | None = None
        self.total = 1
        self.runs_done = 0

    def say(self, text: str) -> None:
        """Print a sentence for a person."""
        if self.mode == "live":
            self.console.print(text, soft_wrap=True)

    def note(self, event: Json) -> None:
        """Print an event for a program."""
        if self.mode == "json":
            print(json.dumps(event), file=sys.stdout, flush=True)

    def begin(self, title: str, limit: int, sites: int) -> None:
        """Open the live table of one run."""
        self.title, self.limit, self.sites = title, limit, sites
        self.since = time.monotonic()
        # the first round that was shown, and when: a resumed run does not begin at round 0
        self.first_round: tuple[int, float] | None = None
        if self.mode == "live" and self.console.is_terminal:
            self.live = Live(self._table(0, {}), console=self.console, transient=True, refresh_per_second=8)
            self.live.start(refresh=True)

    def round(self, rounds: int, record: dict[str, float]) -> None:
        """Show the record of the last of so many rounds."""
        if self.first_round is None:
            self.first_round = (rounds, time.monotonic())
        if self.live is not None:
            self.live.update(self._table(rounds, record))

    def end(self) -> None:
        """Close the live table of one run."""
        if self.live is not None:
            self.live.stop()
            self.live = None
        self.runs_done += 1

    def _table(self, rounds: int, record: dict[str, float]) -> Group:
        """The live table: round, objective, the worst site, bytes, the time that is left."""
        table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
        cells: dict[str, str] = {"round": f"{rounds} of at most {self.limit}" if record else "preparing the program"}
        if "objective" in record:
            cells["objective"] = f"{record['objective']:.6g}"
        elif "minibatch_objective" in record:
            cells["objective, roughly"] = f"{record['minibatch_objective']:.4g}"
        if "feasibility" in record:
            worst = record["feasibility"]
            cells["worst site"] = f"{worst:.2g} over its limit" if worst > 0 else "within its limits"
        if "gradient" in record:
            cells["slope (falls to 0)"] = f"{record['gradient'] ** 0.5:.2g}"
        if record:
            cells["sites answering"] = f"{record.get('answered', 0):.0f} of {self.sites}"
            cells["sent"] = f"{size(record.get('total_up', 0))} up, {size(record.get('total_down', 0))} down"
            first, then = self.first_round or (rounds, time.monotonic())
            now = time.monotonic()
            remaining = (now - then) / (rounds - first) * (self.limit - rounds) if rounds > first else None
            cells["time"] = duration(now - self.since) + (
                f", at most {duration(remaining)} left" if remaining is not None else ""
            )
        for name in cells:
            table.add_column(name)
        table.add_row(*cells.values())
        parts: list[Text | Group] = [Text(self.title, style="bold")]
        if self.total > 1:
            parts.append(
                Group(
                    Text(f"run {self.runs_done + 1} of {self.total}"),
                    ProgressBar(total=self.total, completed=self.runs_done),
                )
            )
        return Group(*parts, table)
