"""What tests over real sites share: one federation for all of them, and marks for what FLARE's threads leave behind."""

import pytest

REAL = [
    # one worker runs them all, after one another: they share the federation, and time what they measure
    pytest.mark.xdist_group("federation"),
    # what is left when a server is killed under FLARE's threads
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
