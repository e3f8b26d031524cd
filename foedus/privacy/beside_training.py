"""What a run releases beside its rounds: figures that prepare the data, and an evaluation on rows held out."""

from collections.abc import Sequence
from dataclasses import replace

from foedus.privacy.composition import gaussian_epsilon
from foedus.privacy.ledger import Ledger, LedgerEntry

Figures = tuple[tuple[str, float, float], ...]
"""What was released, its sensitivity, and the scale of its noise."""


def with_preparation(ledger: Ledger, figures: Figures, exact: tuple[str, ...] = ()) -> Ledger:
    """Return the ledger with what every client sent to prepare the data.

    The figures have Laplace noise, so that one costs sensitivity/scale; `exact` are the columns about which exact
    figures were sent.
    """
    before = tuple(
        LedgerEntry(name, 0, f"preprocessing: {what}", sensitivity, scale, sensitivity / scale, 0.0)
        for name in ledger.names
        for what, sensitivity, scale in figures
    )
    return replace(ledger, before=before, exact=exact)


def with_evaluation(ledger: Ledger, figures: Figures, delta: float) -> Ledger:
    """Return the ledger with what every client sent about rows that it held out of training.

    The noise is Laplace noise where `delta` is 0, and else Gaussian; every figure has the same share of `delta`.
    """
    return replace(ledger, after=_entries(ledger, ledger.names, figures, delta))


def with_further_rows(ledger: Ledger, files: Sequence[str], figures: Figures, delta: float) -> Ledger:
    """Return the ledger with what was released about files of rows that no client has; no client's total grows."""
    names = [f"rows of {name}" for name in files]
    return replace(ledger, after=(*ledger.after, *_entries(ledger, names, figures, delta)))


def _entries(ledger: Ledger, names: Sequence[str], figures: Figures, delta: float) -> tuple[LedgerEntry, ...]:
    last, share = len(ledger.scale), delta / len(figures)
    return tuple(
        LedgerEntry(name, last, what, s, b, gaussian_epsilon(b / s, share) if delta else s / b, share)
        for name in names
        for what, s, b in figures
    )
