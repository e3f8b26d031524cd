"""The algorithms, one file each, beside what families of them share (`descent`, `epm`, `minimax`, `lagrangian`).

An algorithm here says what clients and server compute and send. The loop over rounds lives in `foedus.runtime`, the
numerics in `foedus.numerics`, worst cases over Wasserstein balls in `foedus.robust`, noise in `foedus.privacy`.
"""

from foedus.algorithms.afl import AFL
from foedus.algorithms.centralproxal import CentralProxAL
from foedus.algorithms.drfa import DRFA
from foedus.algorithms.drfl import DRFL
from foedus.algorithms.fedavg import FedAvg
from foedus.algorithms.feddyn import FedDyn
from foedus.algorithms.fedepm import FedEPM
from foedus.algorithms.fedgia import FedGiA
from foedus.algorithms.fedpd import FedPD
from foedus.algorithms.fedprox import FedProx
from foedus.algorithms.inexact_admm import InexactADMM
from foedus.algorithms.interior.interior_point import InteriorPoint
from foedus.algorithms.localsgd import LocalSGD
from foedus.algorithms.private_newton import PrivateNewton
from foedus.algorithms.proxal import ProxAL
from foedus.algorithms.scaffold import Scaffold
from foedus.algorithms.sfedavg import SFedAvg
from foedus.algorithms.sfedprox import SFedProx
from foedus.algorithms.wafl import WAFL, WAFLGradient

__all__ = [
    "AFL",
    "DRFA",
    "DRFL",
    "WAFL",
    "CentralProxAL",
    "FedAvg",
    "FedDyn",
    "FedEPM",
    "FedGiA",
    "FedPD",
    "FedProx",
    "InexactADMM",
    "InteriorPoint",
    "LocalSGD",
    "PrivateNewton",
    "ProxAL",
    "SFedAvg",
    "SFedProx",
    "Scaffold",
    "WAFLGradient",
]
