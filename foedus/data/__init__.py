"""Tables and data sets, their checks, partitioners and preprocessing; no training, and nothing that uses a network.

The exception is `loaders`, which fetches a set of OpenML where one is named. What the sites send each other to agree on
a preprocessing is stated here, in `sums` and `sketch`; who carries it over a network is in `foedus.runtime.flare`.
"""

from typing import TYPE_CHECKING

from foedus.engine import import_late as _import_late

if TYPE_CHECKING:
    from foedus.data.breast_cancer import breast_cancer
    from foedus.data.partition import by_column, dirichlet, iid, natural, power_law, shards, split
    from foedus.data.prepare import Prepared, prepare
    from foedus.stacked import Stacked

__all__ = [
    "Prepared", "Stacked", "breast_cancer", "by_column", "dirichlet", "iid", "natural", "power_law", "prepare",
    "shards", "split",
]  # fmt: skip

_import_late(
    __name__,
    dict.fromkeys(("by_column", "dirichlet", "iid", "natural", "power_law", "shards", "split"), "data.partition")
    | dict.fromkeys(("Prepared", "prepare"), "data.prepare")
    | {"Stacked": "stacked", "breast_cancer": "data.breast_cancer"},
)
