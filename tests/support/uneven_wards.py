"""Hospitals of different sizes, whose pooled rows are what a statistician would fit."""

from masked_wards import POLICY, MaskedWard
from wards import STUDY, Ward

from foedus.app.experiment import sources

KEPT = (60, 23, 41, 34)  # rows of each hospital
BY_ROWS = (
    STUDY.replace("FedGiA", "InteriorPoint")
    .replace("max_rounds = 8", "max_rounds = 60")
    .replace("[problem]\n", '[problem]\nweights = "rows"\n')
)
SECURE = BY_ROWS.replace("[run]\n", "[run]\nsecure = true\n")


def cut_tables(ward: Ward) -> None:
    """Leave each hospital the first rows of its table."""
    for name, rows in zip(ward.names, KEPT, strict=True):
        path = ward.folder / f"hospitals/{name}.csv"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[: rows + 1]))
    ward.cohort = sources.cohort_of(ward.case.settings, ward.folder)


class UnevenWard(Ward):
    """Four hospitals of different sizes."""

    def __init__(self, folder, text=BY_ROWS, policy=None):
        super().__init__(folder, text, policy)
        cut_tables(self)


class UnevenMaskedWard(MaskedWard):
    """The same, of which sums alone are seen."""

    def __init__(self, folder, text=SECURE, policy=POLICY):
        super().__init__(folder, text, policy)
        cut_tables(self)
