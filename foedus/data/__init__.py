"""Tables and data sets, their checks, partitioners and preprocessing; no training, and nothing that uses a network.

The exception is `loaders`, which fetches a set of OpenML where one is named. What the sites send each other to agree on
a preprocessing is stated here, in `sums` and `sketch`; who carries it over a network is in `foedus.federation`.
"""

from typing import TYPE_CHECKING

from foedus.base.engine import late_names as _late_names

if TYPE_CHECKING:
    from foedus.data.loaders import breast_cancer
    from foedus.data.partition import by_column, dirichlet, iid, natural, power_law, shards, split
    from foedus.data.prepared import Prepared, prepare
    from foedus.problem.stacked import Stacked

__all__ = [
    "Prepared", "Stacked", "breast_cancer", "by_column", "dirichlet", "iid", "natural", "power_law", "prepare",
    "shards", "split",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys(("by_column", "dirichlet", "iid", "natural", "power_law", "shards", "split"), "data.partition"),
    **dict.fromkeys(("Prepared", "prepare"), "data.prepared"),
    "Stacked": "problem.stacked",
    "breast_cancer": "data.loaders",
}
__getattr__, __dir__ = _late_names(__name__, _HOMES)
