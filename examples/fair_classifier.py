"""Four banks train one model whose loss on two groups of customers differs by at most 0.02 at each bank."""

import numpy as np
from sklearn.linear_model import LogisticRegression

import foedus as fd


def bank(seed: int, rows: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Customers whose repayment is harder to foresee in the smaller group. (X, y, group)"""
    draw = np.random.default_rng(seed)
    group = np.where(draw.random(rows) < 0.3, "young", "old")
    X = np.column_stack([draw.normal(size=(rows, 3)), group == "young"])
    clarity = np.where(group == "young", 0.4, 1.6)
    chance = 1 / (1 + np.exp(-clarity * (X[:, :3] @ [1.5, -1.0, 0.5]) - 0.5))
    return X, np.where(draw.random(rows) < chance, "repaid", "defaulted"), group


banks = {name: bank(seed) for seed, name in enumerate(("north", "south", "east", "west"))}
fair = fd.FairClassifier(max_gap=0.02).fit(banks)
pooled = LogisticRegression().fit(*(np.concatenate(part) for part in list(zip(*banks.values(), strict=True))[:2]))

for title, model in (("all data in one place, no terms", pooled), ("at most 0.02 at each bank", fair)):
    print(title)
    for name, (X, y, group) in banks.items():
        loss = -np.log(model.predict_proba(X)[np.arange(len(y)), (y == model.classes_[1]).astype(int)])
        old, young = loss[group == "old"].mean(), loss[group == "young"].mean()
        print(f"  {name:5}  loss on old {old:.3f}, on young {young:.3f}, gap {abs(old - young):.3f}")
print(fair.certificate_)
