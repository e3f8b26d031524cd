"""Three clinics train one classifier for measurements that will be a little off; beside it, one on pooled rows."""

import numpy as np
from sklearn.svm import LinearSVC

import foedus as fd


def clinic(seed: int, rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Patients with three markers; the third is sharp here, but depends on the machine."""
    draw = np.random.default_rng(seed)
    ill = np.arange(rows) % 3 == 0
    X = draw.normal(size=(rows, 3)) + ill[:, None] * [1.5, 1.5, 0.3]
    X[:, 2] *= 0.2
    return X, np.where(ill, "ill", "well")


clinics = {name: clinic(seed) for seed, name in enumerate(("north", "south", "east"))}
plain = LinearSVC(C=100.0, max_iter=100_000).fit(
    *(np.concatenate(part) for part in zip(*clinics.values(), strict=True))
)
robust = fd.RobustClassifier(radius=0.1).fit(clinics)
print(robust.worst_case_)

X, y = (np.concatenate(part) for part in zip(*(clinic(seed) for seed in range(10, 40)), strict=True))
off = X + np.random.default_rng(0).choice([-0.3, 0.3], size=X.shape)  # every machine is off by as much
for title, model in (("pooled, no terms", plain), ("robust", robust)):
    print(
        f"{title}: accuracy {model.score(X, y):.3f} on new patients, {model.score(off, y):.3f} on machines that are off"
    )
