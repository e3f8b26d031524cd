"""Hospitals train one model that must not miss tumours: first under a capped loss, then under a bounded miss rate."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

import foedus as fd

X, y = load_breast_cancer(return_X_y=True)
X, diagnosis = scale(X), np.where(y == 0, "malignant", "benign")

# The mean loss on malignant cases is at most 0.2 at every hospital; on benign ones it is as small as it can be then.
five = fd.data.split(X, diagnosis, clients=5, seed=0, by="label")
capped = fd.NeymanPearsonClassifier(max_loss=0.2, pos_label="malignant").fit(five)
print(capped.certificate_)
print(f"{capped.n_rounds_} rounds, {capped.run_.traffic.up / 1e3:.0f} kB up; accuracy {capped.score(X, diagnosis):.3f}")
print()

# The share of malignant cases that is missed is at most 0.1 at every hospital, with confidence 0.95. Half of them are
# kept out of training, and each hospital only tells how many of those lie below the thresholds proposed to it.
two = fd.data.split(X, diagnosis, clients=2, seed=0, by="label")
bounded = fd.NeymanPearsonClassifier(max_loss=0.2, max_miss_rate=0.1, pos_label="malignant", ridge=0.01).fit(two)
print(bounded.calibration_)
for case in ("malignant", "benign"):
    wrong = np.mean(bounded.predict(X[diagnosis == case]) != case)
    print(f"{wrong:.3f} of all {case} cases are taken for the other kind")
