"""The experiments of the papers, for `foedus reproduce`: printed figures beside ours; the algorithms live elsewhere."""

from foedus_lab.papers import drfl, fedepm, fedgia, proxal
from foedus_lab.papers.experiment import Options, PaperExperiment

PAPERS = (fedgia, fedepm, proxal, drfl)
"""The modules of the papers, each with a tuple `EXPERIMENTS`; add a new paper here."""

EXPERIMENTS: dict[str, PaperExperiment] = {
    experiment.name: experiment for paper in PAPERS for experiment in paper.EXPERIMENTS
}

__all__ = ["EXPERIMENTS", "Options", "PaperExperiment"]
