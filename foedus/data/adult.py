"""Adult (Becker and Kohavi 1996, UCI set 2): reads the raw files under FOEDUS_DATA."""

import gzip

import numpy as np

from foedus.base.errors import FoedusError
from foedus.data import files

ADVICE = (
    f"set {files.VARIABLE} to a folder that holds adult.data and adult.test, as they are or compressed (.gz): "
    "the UCI set 2, Adult"
)
"""How to get the data."""

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
)  # fmt: skip
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")


def read(name: str) -> dict[str, np.ndarray]:
    """Read the columns of `adult.data` or `adult.test` as text, with the label as `income`."""
    try:
        path = files.find(name, ADVICE)
    except FoedusError:
        path = files.find(name + ".gz", ADVICE)
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("ascii")
    except (OSError, EOFError, ValueError) as error:
        raise FoedusError(f"{path} cannot be read ({error}): {ADVICE}.") from None
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("|"):  # adult.test begins with a comment
            continue
        row = [part.strip() for part in line.strip().removesuffix(".").split(",")]
        if len(row) != len(COLUMNS) + 1:
            raise FoedusError(f"{path}, line {number}: it has {len(row)} fields; expected 15.")
        if row[-1] not in ("<=50K", ">50K"):
            raise FoedusError(f"{path}, line {number}: the label is {row[-1]!r}; expected '<=50K' or '>50K'.")
        rows.append(row)
    if not rows:
        raise FoedusError(f"{path} holds no rows: {ADVICE}.")
    table = np.array(rows)
    return dict(zip((*COLUMNS, "income"), table.T, strict=True))
