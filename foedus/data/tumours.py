"""The breast-cancer set that comes with scikit-learn, read from its file.

Importing scikit-learn takes about as long as a whole first run, so the file is read without it.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

PLACE = "datasets/data/breast_cancer.csv"  # in scikit-learn's folder


def breast_cancer(*, scaled: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return the Wisconsin diagnostic breast-cancer set, for examples: 569 tumours with 30 measurements each.

    Args:
        scaled: whether each column is brought to mean 0 and standard deviation 1 over all rows. Sites that must not
            pool their rows use `fd.data.prepare` for that.

    Returns:
        X of shape (569, 30), and y, which is 1.0 for malignant tumours (212 of them) and 0.0 for benign ones.

    Example:
        >>> import foedus as fd
        >>> X, y = fd.data.breast_cancer()
        >>> X.shape, int(y.sum())
        ((569, 30), 212)
    """
    spec = find_spec("sklearn")
    path = Path(spec.origin).parent / PLACE if spec is not None and spec.origin is not None else Path(PLACE)
    if path.is_file():
        rows = np.loadtxt(path, delimiter=",", skiprows=1)
        X, benign = rows[:, :-1], rows[:, -1]
    else:  # a scikit-learn that keeps its data elsewhere
        from sklearn.datasets import load_breast_cancer

        X, benign = (np.asarray(part, dtype=float) for part in load_breast_cancer(return_X_y=True))
    return (X - X.mean(axis=0)) / X.std(axis=0) if scaled else X, 1.0 - benign
