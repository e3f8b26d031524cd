"""What a site notes of a run for itself: its rows, and how the final model does on its data. It stays there."""

import json
import time
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.certificate.measure import SitePart
from foedus.certificate.summed import own_rows
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm, name_of
from foedus.protocol.constrained import tolerances

NAME = "certificate-{run}.json"


def write_record(
    folder: Path, run: str, algorithm: Algorithm, terms: Terms, part: SitePart, w: np.ndarray, data: Data
) -> None:
    """Write down what this site measures at the final model, for its own people."""
    rows = [
        {"constraint": label, "kind": kind, "value": float(c + cap), "cap": float(cap), "multiplier": float(mu)}
        for (label, kind), c, cap, mu in zip(
            own_rows(terms, data), *map(np.asarray, (part.local, part.local_caps, part.mu)), strict=True
        )
    ]
    record = {
        "run": run,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
        "algorithm": name_of(algorithm),
        "sites": terms.clients,
        "eps2": tolerances(algorithm)[1],
        "rows": rows,
        "objective": float(part.f),
        "figures": figures(terms, w, data),
    }
    write_whole(folder / NAME.format(run=run), json.dumps(record, indent=1).encode(), private=True)


def figures(terms: Terms, w: np.ndarray, data: Data) -> Json:
    """Return how the model does on a site's own rows: their number, and for labels of two kinds the accuracy."""
    if terms.loss is None or "x" not in data or "y" not in data:
        return {}
    weight = np.asarray(data["weight"])
    x, y = np.asarray(data["x"])[weight > 0], np.asarray(data["y"])[weight > 0]
    result: Json = {"rows": len(y)}
    kinds = {*np.unique(y).tolist()}
    if len(kinds) <= 2 and (kinds <= {0.0, 1.0} or kinds <= {-1.0, 1.0}):
        right = (x @ np.asarray(w) > 0) == (y > 0)
        result |= {"accuracy": float(np.mean(right))}
        for name, group in (("missed positives", y > 0), ("false alarms", y <= 0)):
            if np.any(group):
                result[name] = float(np.mean(~right[group]))
    return result


def read_records(folder: Path) -> list[Json]:
    """Return the records in a site's folder, newest first."""
    records = []
    for path in folder.glob(NAME.format(run="*")):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise FoedusError(f"{path} cannot be read: {error}.") from None
        records.append({"run": path.stem.removeprefix("certificate-"), "time": ""} | record)
    return sorted(records, key=lambda record: str(record["time"]), reverse=True)
