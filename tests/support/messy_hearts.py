"""Six invented heart clinics, each of which writes its file in a way of its own; with later rows in the same way."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Row = dict[str, str]
NAMES = ("age", "sex", "pressure", "chol", "rate", "pain", "ill")
PAINS = ("typical", "atypical", "none seen")


def clean_rows(count: int, draw: np.random.Generator) -> list[Row]:
    """Return rows in the common coding: cholesterol in mg/dl, ill as yes or no."""
    rows = []
    for _ in range(count):
        age, chol = draw.normal(55, 9), draw.normal(245, 45)
        man, pain = draw.random() < 0.65, int(draw.integers(3))
        rate = draw.normal(150 - 0.6 * (age - 55), 18)
        score = 0.09 * (age - 55) + 0.014 * (chol - 245) + 1.1 * man - 0.03 * (rate - 150) + 0.6 * (pain == 0) - 0.8
        ill = draw.random() < 1 / (1 + np.exp(-score))
        pressure = f"{draw.normal(130, 16):.0f}"
        cells = (f"{age:.0f}", "M" if man else "F", pressure, f"{chol:.0f}", f"{rate:.0f}", PAINS[pain])
        rows.append(dict(zip(NAMES, (*cells, "yes" if ill else "no"), strict=True)))
    return rows


@dataclass(frozen=True)
class Clinic:
    """How one clinic writes its rows."""

    name: str
    change: Callable[[Row], Row] = Row.copy
    separator: str = ","
    encoding: str = "utf-8"

    def text(self, rows: list[Row]) -> bytes:
        """Return the rows as this clinic's file."""
        own = [self.change(row) for row in rows]
        out = io.StringIO()
        writer = csv.DictWriter(out, list(own[0]), delimiter=self.separator, lineterminator="\n")
        writer.writeheader()
        writer.writerows(own)
        return out.getvalue().encode(self.encoding)


def in_mmol(row: Row) -> Row:
    return row | {"chol": f"{float(row['chol']) / 38.67:.2f}"}


def german(row: Row) -> Row:
    words = {"yes": "ja", "no": "nein"}
    return row | {"ill": words[row["ill"]], "chol": row["chol"] + ",0"}


def shouting(row: Row) -> Row:
    return row | {"ill": row["ill"].upper(), "pressure": "-999" if row["pressure"].endswith("7") else row["pressure"]}


def renamed(row: Row) -> Row:
    return {"AGE_YEARS" if name == "age" else name: value for name, value in row.items()}


def spelt(row: Row) -> Row:
    return row | {"pain": row["pain"].replace(" ", "_").capitalize()}


CLINICS = (
    Clinic("altona"),
    Clinic("bünde", german, ";", "latin-1"),
    Clinic("celle", in_mmol),
    Clinic("dorsten", shouting),
    Clinic("emden", renamed),
    Clinic("fulda", spelt),
)


def write(folder: Path, rows: int = 60, later: int = 30, seed: int = 1) -> dict[str, list[Row]]:
    """Write the clinics' files into `clinics` and later rows into `later`; return these in the common coding."""
    draw = np.random.default_rng(seed)
    new = {}
    for part in ("clinics", "later"):
        (folder / part).mkdir()
    for clinic in CLINICS:
        (folder / f"clinics/{clinic.name}.csv").write_bytes(clinic.text(clean_rows(rows, draw)))
        new[clinic.name] = clean_rows(later, draw)
        (folder / f"later/{clinic.name}.csv").write_bytes(clinic.text(new[clinic.name]))
    return new
