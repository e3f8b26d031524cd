"""What NumPy confirms of a run of ProxAL."""

import pytest

import foedus as fd


def confirmed(run: fd.Run, residuals) -> None:
    """The certificate is what NumPy finds at the returned point, and it holds."""
    assert run.converged, run.reason
    assert run.certificate.holds(), str(run.certificate)
    for name in ("stationarity", "feasibility", "complementarity", "distance"):
        assert getattr(run.certificate, name) == pytest.approx(getattr(residuals, name), rel=1e-6, abs=1e-12), name
