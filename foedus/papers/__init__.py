"""The papers' experiments, one module a paper: what was printed beside what is measured here."""

from foedus.papers import drfl, fedepm, fedgia, proxal
from foedus.papers.experiment import Experiment, Options

PAPERS = (fedgia, fedepm, proxal, drfl)
"""A paper is a module with a tuple `EXPERIMENTS`; a further one is added here."""

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for paper in PAPERS for experiment in paper.EXPERIMENTS
}

__all__ = ["EXPERIMENTS", "Experiment", "Options"]
