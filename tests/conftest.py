"""Settings of all tests."""

import os

from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")

# the same examples on every machine and in every run; compilation makes the first example slow
settings.register_profile("foedus", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("foedus")
