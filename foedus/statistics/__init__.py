"""How good a model is on rows it has not seen, from sums and histograms that each site computes from its own rows."""

from foedus.statistics.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
