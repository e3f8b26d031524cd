"""Empty figures, and keeping them: what all pictures of `foedus reproduce` share."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from foedus.errors import FoedusError
from foedus.papers.experiment import Options


def panels(width: float, height: float, rows: int, columns: int, **more: Any) -> tuple[Any, Any]:
    """A figure and its axes as an array (rows, columns), without frames above and, but for a twin, to the right."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FoedusError("a figure needs matplotlib; install it with: pip install 'foedus[plot]'.") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **more)
    for one in np.ravel(axes):
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def keep_figure(options: Options, name: str, figure: Any, caption: str) -> None:
    """Write the figure as PNG and as SVG, which is the same file for the same figures."""
    figure.suptitle(caption, fontsize=10)
    for kind, more in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **more)
        options.keep(f"{name}.{kind}", buffer.getvalue())


def keep_rows(options: Options, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write a table of records that have the same fields as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    options.keep(f"{name}.csv", text.getvalue().encode())
