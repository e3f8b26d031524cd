"""Data files that the user provides: finds them in the folder that FOEDUS_DATA names, and reads one set from it."""

import os
import zipfile
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError

VARIABLE = "FOEDUS_DATA"
TOXICITY = (
    f"set {VARIABLE} to a folder that holds qot.npz with X (8992 x 1024, 0/1) and y (-1/+1): "
    "the UCI set 508, QSAR oral toxicity"
)
"""How to get the toxicity data, to be put behind 'to have it, '."""


def find(name: str, advice: str) -> Path:
    """Return the path of a file in the folder that FOEDUS_DATA names; `advice` says how to get a missing file."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise FoedusError(f"{name} is needed and {VARIABLE} is not set: {advice}.")
    path = Path(folder) / name
    if not path.is_file():
        problem = "holds no such file" if Path(folder).is_dir() else "is not a folder"
        raise FoedusError(f"{name} is needed and {VARIABLE}={folder} {problem}: {advice}.")
    return path


def arrays(name: str, fields: tuple[str, ...], advice: str) -> tuple[np.ndarray, ...]:
    """Return the arrays `fields` of an .npz file in the folder that FOEDUS_DATA names."""
    path = find(name, advice)
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [field for field in fields if field not in archive]
            if missing:
                raise FoedusError(f"{path}: the array {missing[0]!r} is missing; {advice}.")
            return tuple(archive[field] for field in fields)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, FoedusError):
            raise
        raise FoedusError(f"{path} cannot be read as an .npz file ({error}); {advice}.") from None


def toxicity() -> tuple[np.ndarray, np.ndarray]:
    """Return QSAR oral toxicity: fingerprints X of 0/1, (8992, 1024), and labels y of 0/1, of which 741 are 1."""
    X, y = arrays("qot.npz", ("X", "y"), TOXICITY)
    if X.shape != (8992, 1024) or y.shape != (8992,):
        raise FoedusError(f"qot.npz has X of shape {X.shape} and y of shape {y.shape}; {TOXICITY}.")
    for key, array, entries in (("X", X, (0, 1)), ("y", y, (-1, 1))):
        wrong = ~np.isin(array, entries)
        if wrong.any():
            raise FoedusError(f"qot.npz: {key} has the entry {array[wrong][0]}; {TOXICITY}.")
    return X.astype(float), (y > 0).astype(float)
