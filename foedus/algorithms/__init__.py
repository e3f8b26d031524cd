"""The algorithms, one file each, beside what families of them share (`private`, `epm`, `minimax`, `lagrangian`).

An algorithm here says what clients and server compute and send. The loop over rounds lives in `foedus.runtime`, the
numerics in `foedus.numerics`, worst cases over Wasserstein balls in `foedus.robust`, noise in `foedus.privacy`.
"""

from typing import TYPE_CHECKING

from foedus.base.engine import late_names as _late_names

if TYPE_CHECKING:
    from foedus.algorithms.afl import AFL
    from foedus.algorithms.drfa import DRFA
    from foedus.algorithms.drfl import DRFL
    from foedus.algorithms.fedavg import FedAvg
    from foedus.algorithms.feddyn import FedDyn
    from foedus.algorithms.fedepm import FedEPM
    from foedus.algorithms.fedgia import FedGiA
    from foedus.algorithms.fednova import FedNova
    from foedus.algorithms.fedpd import FedPD
    from foedus.algorithms.fedprox import FedProx
    from foedus.algorithms.inexact_admm import InexactADMM
    from foedus.algorithms.interior.interior_point import InteriorPoint
    from foedus.algorithms.localsgd import LocalSGD
    from foedus.algorithms.private_newton import PrivateNewton
    from foedus.algorithms.proxal import CentralProxAL, ProxAL
    from foedus.algorithms.scaffold import Scaffold
    from foedus.algorithms.sfedavg import SFedAvg, SFedProx
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
    "FedNova",
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

# An algorithm is in the file of its name, where nothing else is said; it is imported when it is first asked for
_FILES = {
    "CentralProxAL": "proxal",
    "InexactADMM": "inexact_admm",
    "InteriorPoint": "interior.interior_point",
    "PrivateNewton": "private_newton",
    "SFedProx": "sfedavg",
    "WAFLGradient": "wafl",
}
__getattr__, __dir__ = _late_names(__name__, {name: f"algorithms.{_FILES.get(name, name.lower())}" for name in __all__})
