"""The run directory: who owns it, whether it is finished, and its files beside those of `Run.save`.

    experiment.json      what was asked, resolved; a digest of it and of the data files; sites; versions
    preprocessing.json   how raw rows become the model's numbers
    events.jsonl         one line an event, while the run goes
    run.ckpt             the state of a run that is not finished; run.federation that of one over sites started for it
    request.npz, submission.json    a submitted run that is not finished
    run.json, history.npz, parameters.npz (and ledger.npz, plan.json)    the finished run
    asked.json           what was asked, in the words of the report
    report.html          the same for people

`docs/run-directory.md` has the fields.
"""

import hashlib
import json
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from foedus.app.experiment.file import Experiment, RunCase
from foedus.app.experiment.sources import sources_of
from foedus.app.experiment.sweep import Settings
from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.data import sql, tables
from foedus.data.preprocess import Preprocessing
from foedus.federation.flare.driver import KEPT
from foedus.runtime.run import PLAN, Run, load, versions

SCHEMA = 1
REQUEST, SUBMISSION = "request.npz", "submission.json"
OURS = (
    "experiment.json", "preprocessing.json", "events.jsonl", "run.ckpt", "run.json", "history.npz", "parameters.npz",
    "ledger.npz", "asked.json", "report.html", "card.md", REQUEST, SUBMISSION, PLAN,
)  # fmt: skip


def plain(value: object) -> object:
    """Return settings as JSON holds them."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def digest_of(settings: Settings, folder: Path) -> str:
    """Return a digest of the settings and of the bytes of the data files; it changes whenever the result could."""
    request = {key: value for key, value in settings.items() if key not in ("name", "out")}
    total = hashlib.sha256(json.dumps(plain(request), sort_keys=True).encode())
    for path in sources_of(settings, folder):
        tables.check_file(path, str(path))
        total.update(tables.digest_of(path))
    data = settings["data"]
    if data.get("source") is not None:
        total.update(sql.digest_of(data["source"], data["query"], folder))
    return total.hexdigest()


@dataclass(frozen=True)
class Folder:
    """One run directory, for one case of an experiment."""

    path: Path
    digest: str

    @property
    def checkpoint(self) -> Path:
        """The file with the state of a run that is not finished."""
        return self.path / "run.ckpt"

    def state(self) -> str:
        """Return "new", "begun" or "finished"; raise where something else is in the way."""
        if self.path.is_file() or any(parent.is_file() for parent in self.path.parents):
            raise FoedusError(f"{self.path}: a file is in the way; expected a folder, or nothing.")
        if not self.path.exists() or all(_is_run(entry) for entry in self.path.iterdir()):
            return "new"
        file = self.path / "experiment.json"
        if not file.is_file():
            raise FoedusError(f"{self.path} is not empty and is no run directory; choose another with --out.")
        try:
            record = json.loads(file.read_text())
            same = record["schema"] == SCHEMA and record["digest"] == self.digest
        except (OSError, ValueError, KeyError, TypeError):
            raise FoedusError(f"{file} is damaged; delete the folder, or choose another with --out.") from None
        if not same:
            raise FoedusError(
                f"{self.path} holds a run with other settings or other data; keep it and choose another folder with "
                "--out, or replace it with --again."
            )
        return "finished" if (self.path / "run.json").is_file() else "begun"

    def clear(self) -> None:
        """Remove a former run, and nothing that is not part of one."""
        if (self.path / "experiment.json").is_file():
            for name in OURS:
                (self.path / name).unlink(missing_ok=True)
            shutil.rmtree(self.checkpoint.with_suffix(KEPT), ignore_errors=True)

    def begin(
        self, experiment: Experiment, case: RunCase, sites: dict[str, int | None], dropped: dict[str, int]
    ) -> None:
        """Write down what is about to be run; `sites` are the rows of each, None where a site keeps that to itself."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FoedusError(f"cannot make the run directory {self.path}: {error.strerror}.") from None
        record = {
            "schema": SCHEMA,
            "name": experiment.name,
            "case": case.name,
            "file": str(experiment.path),
            "digest": self.digest,
            "settings": plain(case.settings),
            "seed": case.settings["seed"],
            "sites": sites,
            "dropped_rows": dropped,
            "versions": versions(),
        }
        self.write("experiment.json", record)

    def write_preparation(self, rules: Preprocessing) -> None:
        """Write down how raw rows become the model's numbers."""
        record = json.loads((self.path / "experiment.json").read_text())
        record["features"] = rules.names
        record["preparation"] = {"rounds": rules.rounds, "up": rules.up, "down": rules.down}
        record["preparation"] |= {} if rules.epsilon is None else {"epsilon": rules.epsilon}
        self.write("experiment.json", record)
        self.write("preprocessing.json", rules.to_json())

    def finish(self, run: Run) -> None:
        """Save the run, and delete its checkpoint and its submission."""
        run.save(self.path)
        for name in ("run.ckpt", REQUEST, SUBMISSION):
            (self.path / name).unlink(missing_ok=True)

    def event(self, kind: str, **fields: object) -> Json:
        """Append one event to events.jsonl, and return it."""
        event = finite({"event": kind, "time": round(time.time(), 3)} | fields)
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event, default=float) + "\n")
        return event

    def run(self) -> Run:
        """Load the finished run."""
        return load(self.path)

    def write(self, name: str, content: Json) -> None:
        """Write one JSON file."""
        write_whole(self.path / name, (json.dumps(content, indent=1) + "\n").encode())


def _is_run(entry: Path) -> bool:
    """Whether an entry is a run directory of a sweep, or a page of the sweep; a single run may be put beside them."""
    return (entry / "experiment.json").is_file() or (
        entry.name in ("report.html", "summary.csv") and not (entry.parent / "run.json").exists()
    )


def finite(content: Json) -> Json:
    """Return the same content with None for numbers that are not finite, which JSON cannot hold."""
    return {key: _finite(value) for key, value in content.items()}


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return finite(value)
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def folder_of(experiment: Experiment, case: RunCase, out: Path | None) -> Folder:
    """Return the run directory of a case: the experiment's folder, or one inside it when there are several cases."""
    base = out or experiment.out
    return Folder(base / case.name if case.name else base, digest_of(case.settings, experiment.folder))
