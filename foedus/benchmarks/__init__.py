"""`foedus bench`: ratios against a peer or a physical limit, measured in the same run."""

from foedus.benchmarks.harness import run

__all__ = ["run"]
