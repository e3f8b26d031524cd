"""The modelled time of a run over three networks: round trips, bytes over a site's link, and the sites' computing.

A round lasts a round trip, the bytes that one site receives and sends over its own link, and the computing of one site.
Sites compute side by side on machines like this one: a site's computing is the simulator's processor time divided by
the number of sites. A reply that is lost costs no waiting. The server's own link is not modelled.
"""

from dataclasses import dataclass

import numpy as np

from foedus_lab.study.play import Trace

BITS = 8.0


@dataclass(frozen=True)
class Network:
    """A kind of network: seconds of a round trip, bits a second of a site's link, and the share of replies lost."""

    name: str
    title: str
    round_trip: float
    bits: float
    dropout: float = 0.0

    def seconds(self, trace: Trace) -> np.ndarray:
        """Return the modelled seconds up to the end of each round."""
        kinds = trace.kinds
        link = BITS * (np.asarray(trace.down)[kinds] + np.asarray(trace.up)[kinds]) / self.bits
        return np.cumsum(self.round_trip + link) + trace.seconds / trace.clients


NETWORKS = (
    Network("data-centre", "data centre: 1 ms, 10 Gbit/s", 1e-3, 10e9),
    Network("hospitals", "hospitals: 50 ms, 100 Mbit/s", 50e-3, 100e6),
    Network("phones", "phones: 200 ms, 5 Mbit/s, 10 % of replies lost", 200e-3, 5e6, dropout=0.1),
)
