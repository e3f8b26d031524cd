"""Data for experiments: sets that come with scikit-learn or are generated, files under FOEDUS_DATA, partitioners."""

from foedus.data.partition import by_column, dirichlet, iid, natural, power_law, shards, split
from foedus.stacked import Stacked

__all__ = ["Stacked", "by_column", "dirichlet", "iid", "natural", "power_law", "shards", "split"]
