"""Rows for survival analysis: data sets of R's package survival that fit on a page, and cohorts drawn here."""

import itertools

import numpy as np

Columns = dict[str, np.ndarray]

# Edmunson et al. (1979), `ovarian` of R's package survival: futime, fustat, age, resid.ds, rx, ecog.ps
OVARIAN = """
59 1 72.3315 2 1 1; 115 1 74.4932 2 1 1; 156 1 66.4658 2 1 2; 421 0 53.3644 2 2 1; 431 1 50.3397 2 1 1;
448 0 56.4301 1 1 2; 464 1 56.9370 2 2 2; 475 1 59.8548 2 2 2; 477 0 64.1753 2 1 1; 563 1 55.1781 1 2 2;
638 1 56.7562 1 1 2; 744 0 50.1096 1 2 1; 769 0 59.6301 2 2 2; 770 0 57.0521 2 2 1; 803 0 39.2712 1 1 1;
855 0 43.1233 1 1 2; 1040 0 38.8932 2 1 2; 1106 0 44.6000 1 1 1; 1129 0 53.9068 1 2 1; 1206 0 44.2055 2 2 1;
1227 0 59.5890 1 2 2; 268 1 74.5041 2 1 2; 329 1 43.1370 2 1 1; 353 1 63.2192 1 2 2; 365 1 64.4247 2 2 1;
377 0 58.3096 1 2 1
"""
# Miller (1997), `aml` of R's package survival: weeks, and whether it was a relapse
MAINTAINED = [(9, 1), (13, 1), (13, 0), (18, 1), (23, 1), (28, 0), (31, 1), (34, 1), (45, 0), (48, 1), (161, 0)]
OTHERS = [(5, 1), (5, 1), (8, 1), (8, 1), (12, 1), (16, 0), (23, 1), (27, 1), (30, 1), (33, 1), (43, 1), (45, 1)]
BRCA = {"s0": 311, "s1": 196, "s2": 206, "s3": 162, "s4": 162, "s5": 51}  # patients of FLamby's sites
BRCA_FEATURES = 39


def ovarian() -> Columns:
    rows = np.array([line.split() for line in OVARIAN.split(";")], dtype=float)
    return dict(zip(("futime", "fustat", "age", "resid.ds", "rx", "ecog.ps"), rows.T, strict=True))


def aml() -> Columns:
    time, event = np.array([*MAINTAINED, *OTHERS], dtype=float).T
    return {"time": time, "event": event, "x": np.array(["Maintained"] * 11 + ["Nonmaintained"] * 12)}


def dealt(columns: Columns, number: int, seed: int = 0) -> dict[str, Columns]:
    """The rows dealt out to so many sites."""
    order = np.random.default_rng(seed).permutation(len(next(iter(columns.values()))))
    return {
        f"site {k}": {name: values[np.sort(rows)] for name, values in columns.items()}
        for k, rows in enumerate(np.array_split(order, number))
    }


def pooled(sites: dict[str, Columns]) -> Columns:
    first = next(iter(sites.values()))
    return {name: np.concatenate([columns[name] for columns in sites.values()]) for name in first}


def strata(sites: dict[str, Columns]) -> np.ndarray:
    return np.concatenate([[k] * len(columns["time"]) for k, columns in enumerate(sites.values())])


def cohort(sizes: dict[str, int], features: int, seed: int, unit: float = 0.0) -> dict[str, Columns]:
    """Sites with hazards of their own; with `unit` times are whole multiples of it, so that there are ties."""
    beta = np.random.default_rng(99).normal(scale=0.4, size=features)
    sites = {}
    for k, (name, size) in enumerate(sizes.items()):
        draw = np.random.default_rng([seed, k])
        x = draw.normal(size=(size, features)) * 2.0 ** np.arange(-2, features - 2)[None, :][:, :features] % 8 + k / 4
        z = (x - x.mean(axis=0)) / x.std(axis=0)
        event = draw.exponential(np.exp(-z @ beta) * (1.0 + 0.3 * k))
        last = draw.exponential(2.0, size=size)
        time = np.minimum(event, last)
        time = np.ceil(time / unit) * unit if unit else time
        columns = {"time": time, "event": (event <= last).astype(float)}
        sites[name] = columns | {f"x{j}": x[:, j] for j in range(features)}
    return sites


def brca(seed: int = 0) -> dict[str, Columns]:
    """A cohort in the shape of FLamby's TCGA-BRCA: its six sites, 39 features most of which are 0 or 1, few deaths."""
    truth = np.random.default_rng(7)
    beta = np.r_[0.8, truth.normal(scale=0.5, size=BRCA_FEATURES - 1)]
    share = truth.uniform(0.1, 0.5, size=BRCA_FEATURES)
    sites = {}
    for k, (name, size) in enumerate(BRCA.items()):
        draw = np.random.default_rng([seed, k])
        x = (draw.random((size, BRCA_FEATURES)) < share).astype(float)
        x[:, 0] = draw.normal(0.58, 0.13, size=size)
        event = 4000 * draw.exponential(np.exp(-(x - x.mean(axis=0)) @ beta))
        last = draw.exponential(1100, size=size)
        columns = {"time": np.ceil(np.minimum(event, last)), "event": (event <= last).astype(float)}
        sites[name] = columns | {f"x{j}": x[:, j] for j in range(BRCA_FEATURES)}
    return sites


def log_partial(time, event, x, beta, ties, strata=None, weights=None) -> float:
    """The log partial likelihood, risk set by risk set, as Klein and Moeschberger (2003, chapter 8) write it."""
    weights = np.ones(len(time)) if weights is None else weights
    strata = np.zeros(len(time)) if strata is None else strata
    eta, total = x @ beta, 0.0
    for s, t in itertools.product(np.unique(strata), np.unique(time[event > 0])):
        dead = np.flatnonzero((strata == s) & (time == t) & (event > 0))
        risk = np.flatnonzero((strata == s) & (time >= t))
        all_risk = np.sum(weights[risk] * np.exp(eta[risk]))
        tied = np.sum(weights[dead] * np.exp(eta[dead]))
        for place, j in enumerate(dead):
            share = place / len(dead) if ties == "efron" else 0.0
            weight = np.mean(weights[dead]) if ties == "efron" else weights[j]
            total += weights[j] * eta[j] - weight * np.log(all_risk - share * tied)
    return float(total)
