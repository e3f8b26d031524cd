"""What it costs that sites check masked sums: processor time at a site, and the time of a round over real sites."""

import pytest

pytest.importorskip("cryptography")

import foedus as fd
from foedus_lab.benchmarks import secure


@pytest.mark.parametrize("algorithm", [fd.FedAvg(k0=1, lr=0.01), fd.InteriorPoint()], ids=["FedAvg", "InteriorPoint"])
def test_a_checked_round_takes_at_most_ten_milliseconds_of_a_sites_processor(algorithm):
    """Ten sites with thirty columns; the median of the rounds, so that one busy moment does not count."""
    assert secure.site_seconds(algorithm, max_rounds=6) <= secure.CPU


@pytest.mark.slow
def test_a_checked_round_over_real_sites_takes_at_most_two_and_a_half_times_a_masked_one():
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")
    checked = secure.loopback_rounds(quick=True)[-1]
    assert checked.ratio <= secure.CHECKED_RATIO, checked
