"""Algorithms whose server needs only sums, so that nobody has to show it a single client's reply."""

from foedus.algorithm import Algorithm


class Summing(Algorithm):
    """An algorithm whose `aggregate` uses nothing of the replies but their sum over clients and their number."""
