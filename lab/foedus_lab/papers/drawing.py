"""Functions that all pictures of `foedus reproduce` share: making empty figures, and writing figures and tables."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from foedus.base.errors import FoedusError
from foedus_lab.papers.experiment import Options

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def panels(
    width: float, height: float, rows: int, columns: int, *, sharey: bool = False
) -> "tuple[Figure, np.ndarray]":
    """Return a figure and its axes as an array (rows, columns), without frames at the top and to the right."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FoedusError("a figure needs matplotlib; install it with: pip install 'foedus[plot]'.") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for one in np.ravel(axes):
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def keep_figure(options: Options, name: str, figure: "Figure", caption: str) -> None:
    """Write the figure as PNG and as SVG; without its date an SVG file depends only on what it shows."""
    figure.suptitle(caption, fontsize=10)
    for kind, metadata in (("png", None), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=160 if kind == "png" else "figure", metadata=metadata)
        options.keep(f"{name}.{kind}", buffer.getvalue())


def keep_rows(options: Options, name: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Write records that have the same fields as a CSV table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    options.keep(f"{name}.csv", text.getvalue().encode())
