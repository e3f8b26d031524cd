"""How long the experiments take, in processor seconds, as `foedus reproduce NAME` says at its end.

Measured on two cores of an x86-64 machine with compiled programs in the cache or not, whichever was the case; other
machines differ by a factor of two. Where a full experiment was not run as a whole, its time is computed from a part
that was, and `part` names it.
"""

from dataclasses import dataclass

from foedus.base.quantities import duration


@dataclass(frozen=True)
class Cost:
    """Processor seconds in full; `part` is what was measured where the experiment was not run whole."""

    full: float
    part: str = ""

    def sentence(self) -> str:
        """Return how long the full experiment takes, and how that is known."""
        how = f"computed from {self.part}" if self.part else "measured"
        return f"in full about {duration(self.full)} of a processor ({how})"


COSTS: dict[str, Cost] = {
    "fedgia-table4": Cost(1192),
    "fedgia-fig1": Cost(18),
    "fedgia-fig2": Cost(1220, "four of its five numbers of clients, 974 seconds"),
    "fedgia-fig3": Cost(1285, "one of its five instances, 257 seconds"),
    "fedgia-fig4": Cost(13),
    "fedgia-fig5": Cost(96),
    "fedgia-fig6": Cost(122),
    "fedepm-table1": Cost(18),
    "fedepm-fig2": Cost(280),
    "fedepm-fig3": Cost(508),
    "fedepm-fig4": Cost(314),
    "fedepm-fig5": Cost(296),
    "fedepm-epsilon": Cost(46),
    "proxal-qp": Cost(127),
    "proxal-np": Cost(183),
    "proxal-fair": Cost(145),
    "proxal-fig1": Cost(12),
    "proxal-fig2": Cost(88),
    "proxal-fig3": Cost(47),
    "drfl-fig1": Cost(1),
    "drfl-fig2": Cost(1730, "one of its ten seeds, 173 seconds"),
    "drfl-fig3": Cost(820, "one of its ten seeds, 82 seconds"),
    "drfl-fig4": Cost(770, "one of its ten seeds, 77 seconds"),
    "drfl-fig5": Cost(1140, "one of its ten seeds, 114 seconds"),
}
"""The costs by the name of the experiment."""
