"""The benchmarks of `foedus bench`: times, each beside a reference measured in the same run; no correctness tests."""

from foedus_lab.benchmarks.suite import run

__all__ = ["run"]
