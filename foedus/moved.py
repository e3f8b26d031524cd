"""Modules of version 0.1 under their old names: importing one works, warns, and says where its contents are now.

To be removed in version 0.3.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "foedus.algorithms.anderson": "foedus.numerics.anderson",
    "foedus.algorithms.first_order": "foedus.algorithms.descent",
    "foedus.algorithms.secure": "foedus.algorithms.epm",
    "foedus.algorithms.support": "foedus.robust.support",
    "foedus.algorithms.weights": "foedus.robust.weights",
    "foedus.distribution": "foedus.robust.distribution",
    "foedus.local.cone": "foedus.numerics.cone",
    "foedus.local.gram": "foedus.algorithms.gram",
    "foedus.local.interior": "foedus.numerics.interior",
    "foedus.local.lagrangian": "foedus.algorithms.lagrangian",
    "foedus.local.lapack": "foedus.numerics.lapack",
    "foedus.local.lbfgs": "foedus.numerics.lbfgs",
    "foedus.local.newton": "foedus.numerics.newton",
    "foedus.local.polyhedron": "foedus.robust.polyhedron",
    "foedus.local.quasi": "foedus.numerics.limited_memory",
    "foedus.local.robust_form": "foedus.robust.form",
    "foedus.local.robust_step": "foedus.robust.step",
    "foedus.local.spectrum": "foedus.numerics.spectrum",
    "foedus.local.worst_case": "foedus.robust.closed",
    "foedus.estimators.umbrella": "foedus.evaluation.umbrella",
    "foedus.local": "foedus.numerics",
    "foedus.privacy.attach": "foedus.privacy.releasing",
    "foedus.privacy.audit": "foedus.audit",
    "foedus.privacy.local": "foedus.privacy.total",
    "foedus.robust_bound": "foedus.robust.bound",
    "foedus.runtime.wire": "foedus.runtime.spine",
}


class MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module that has moved, when nobody else finds one of that name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The specification of a module under its old name."""
        if fullname not in MOVED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == "foedus.local")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module under its new name."""
        home = MOVED[spec.name]
        warnings.warn(f"{spec.name} is now {home}; the old name goes in 0.3.", DeprecationWarning, stacklevel=2)
        module = ModuleType(spec.name)
        module.__dict__.update({k: v for k, v in vars(importlib.import_module(home)).items() if k[:2] != "__"})
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to be done."""


def install() -> None:
    """Have old names work, once for each process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
