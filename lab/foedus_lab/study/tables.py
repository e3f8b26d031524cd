"""The rows of the study: data sets by name, dealt out to sites of equal size, so that every seed has the same shapes.

Real sets come from scikit-learn or from the folder that FOEDUS_DATA names. Generated ones have a dial for each way in
which sites can differ: `shift` between the sites' means and models, `condition` of the columns' scales.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from foedus.base.errors import FoedusError
from foedus.data import loaders
from foedus.problem.stacked import Stacked
from foedus_lab import datasets

LIBSVM = (
    f"set {loaders.VARIABLE} to a folder that holds libsvm/phishing.gz, a9a.gz and w8a.gz: the sets of these names in "
    "LIBSVM's text format"
)


@dataclass(frozen=True)
class Sample:
    """All sites' rows, one site after the other, `rows` of each; labels are 0/1 or numbers."""

    X: np.ndarray
    y: np.ndarray
    sites: int
    rows: int
    group: np.ndarray | None = None

    def clients(self) -> dict[str, tuple[np.ndarray, ...]]:
        """Return the sites' arrays by name, as `Problem` takes them."""
        arrays = (self.X, self.y) if self.group is None else (self.X, self.y, self.group)
        places = [slice(i * self.rows, (i + 1) * self.rows) for i in range(self.sites)]
        return {f"site-{i}": tuple(a[place] for a in arrays) for i, place in enumerate(places)}

    def stacked(self) -> Stacked:
        """Return the sites' arrays on a leading axis, without names, for many sites."""
        arrays = {"x": self.X, "y": self.y}
        return Stacked({name: a.reshape(self.sites, self.rows, *a.shape[1:]) for name, a in arrays.items()})

    def by_site(self, values: np.ndarray) -> np.ndarray:
        """Return values by row, on the last axis, with an axis for the sites: (..., sites, rows)."""
        return values.reshape(*values.shape[:-1], self.sites, self.rows)


@dataclass(frozen=True)
class Source:
    """A data set: how its rows are read, and how many sites and rows a site it gets in the quick and the full grid."""

    load: Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray | None]]  # seed in; X, y and group out
    quick: tuple[int, int]  # sites, rows a site
    full: tuple[int, int]
    alpha: float | None = None  # of a Dirichlet split by label; None deals rows out at random
    deals: bool = True  # whether rows are dealt out to sites; a generated set draws each site's rows itself

    def sample(self, seed: int, quick: bool) -> Sample:
        """Return the rows of all sites, which depend on the seed; their number does not."""
        sites, rows = self.quick if quick else self.full
        X, y, group = self.load(seed) if self.deals else draw_sites(self, seed, sites, rows)
        draw = np.random.default_rng([seed, 1])
        if self.deals:
            order = draw.permutation(len(X))
            order = (
                order[: sites * rows] if self.alpha is None else split_by_label(y, order, sites, rows, self.alpha, draw)
            )
            X, y, group = X[order], y[order], None if group is None else group[order]
        return Sample(X, y, sites, rows, group)


def split_by_label(
    y: np.ndarray, order: np.ndarray, sites: int, rows: int, alpha: float, draw: np.random.Generator
) -> np.ndarray:
    """Return row numbers, site after site, with label shares drawn from a Dirichlet distribution of parameter alpha.

    Sites have equal sizes. Where a label's rows have run out, a site gets rows of the other labels instead.
    """
    labels = np.unique(y)
    pools = [list(order[y[order] == label]) for label in labels]
    places: list[int] = []
    for _ in range(sites):
        shares = draw.dirichlet(np.full(len(labels), alpha))
        numbers: list[int] = []
        for pool, share in zip(pools, shares, strict=True):
            count = min(round(share * rows), len(pool), rows - len(numbers))
            numbers += [pool.pop() for _ in range(count)]
        while len(numbers) < rows:
            numbers.append(max(pools, key=len).pop())
        places += numbers
    return np.array(places)


@dataclass(frozen=True)
class Dials(Source):
    """A generated set, with its dials."""

    columns: int = 20
    shift: float = 0.0  # how far the sites' means and models lie apart
    condition: float = 1.0  # the largest over the smallest scale of a column, squared


def draw_sites(source: Source, seed: int, sites: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows with a linear signal: columns X with an intercept, the signal plus noise as y, and groups 0/1."""
    assert isinstance(source, Dials)
    draw = np.random.default_rng([seed, 2])
    columns = source.columns
    scales = source.condition ** (-0.5 * np.arange(columns) / max(columns - 1, 1))
    model = draw.standard_normal(columns) / scales / np.sqrt(columns)
    spread = 1.0 / np.sqrt(columns)
    mean = source.shift * spread * draw.standard_normal((sites, 1, columns))
    own = model + 0.5 * source.shift * spread * draw.standard_normal((sites, columns)) / scales
    X = draw.standard_normal((sites, rows, columns + 1))
    X[..., :-1] += mean
    X[..., :-1] *= scales
    y = (X[..., :-1] @ own[..., None])[..., 0] + 0.5 * draw.standard_normal((sites, rows))
    X[..., -1] = 1.0
    group = draw.integers(0, 2, sites * rows)
    group[::rows], group[1::rows] = 0, 1  # every site has both
    return X.reshape(sites * rows, columns + 1), y.ravel(), group


def _with_constant(X: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and variance 1, and a constant one; a column that never changes becomes 0."""
    spread = X.std(axis=0)
    return np.column_stack([(X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0), np.ones(len(X))])


@lru_cache(maxsize=2)
def _breast(seed: int = 0) -> tuple[np.ndarray, np.ndarray, None]:
    from sklearn.datasets import load_breast_cancer

    X, y = map(np.asarray, load_breast_cancer(return_X_y=True))
    return _with_constant(X), 1.0 - y, None  # 1: malignant


@lru_cache(maxsize=2)
def _diabetes(seed: int = 0) -> tuple[np.ndarray, np.ndarray, None]:
    from sklearn.datasets import load_diabetes

    X, y = map(np.asarray, load_diabetes(return_X_y=True))
    return _with_constant(X), (y - y.mean()) / y.std(), None


@lru_cache(maxsize=4)
def _libsvm(name: str) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_svmlight_file

    path = loaders.find(f"libsvm/{name}.gz", LIBSVM)
    try:
        X, y = load_svmlight_file(str(path))
    except (OSError, ValueError, EOFError) as error:
        raise FoedusError(f"{path} cannot be read as LIBSVM's format ({error}); {LIBSVM}.") from None
    return np.column_stack([np.asarray(X.todense()), np.ones(X.shape[0])]), (y > y.min()).astype(float)


def _from_libsvm(name: str) -> Callable[[int], tuple[np.ndarray, np.ndarray, None]]:
    return lambda seed: (*_libsvm(name), None)


def _standard(
    load: Callable[[], tuple[np.ndarray, np.ndarray]],
) -> Callable[[int], tuple[np.ndarray, np.ndarray, None]]:
    """A set of the UCI repository with standardised columns; numbers to predict are standardised too."""

    def rows(seed: int) -> tuple[np.ndarray, np.ndarray, None]:
        X, y = load()
        return _with_constant(X), y if set(np.unique(y)) <= {0.0, 1.0} else (y - y.mean()) / y.std(), None

    return rows


@lru_cache(maxsize=1)
def _adult_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = datasets.adult_b()
    return np.column_stack([table.X, np.ones(len(table.X))]), np.asarray(table.y, float), np.asarray(table.sex)


def _adult(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _adult_table()


def _toxicity() -> tuple[np.ndarray, np.ndarray]:
    return loaders.toxicity()


def _nothing(seed: int) -> tuple[np.ndarray, np.ndarray, None]:
    raise NotImplementedError("a generated set draws its rows by `draw_sites`")


SOURCES: dict[str, Source] = {
    "breast-cancer": Source(_breast, quick=(10, 50), full=(10, 50)),
    "breast-cancer-skewed": Source(_breast, quick=(10, 50), full=(10, 50), alpha=0.3),
    "diabetes": Source(_diabetes, quick=(10, 44), full=(10, 44)),
    "phishing": Source(_from_libsvm("phishing"), quick=(10, 100), full=(142, 77)),
    "phishing-skewed": Source(_from_libsvm("phishing"), quick=(10, 100), full=(142, 77), alpha=0.1),
    "a9a": Source(_from_libsvm("a9a"), quick=(10, 80), full=(142, 229)),
    "w8a": Source(_from_libsvm("w8a"), quick=(10, 50), full=(142, 350)),
    "toxicity": Source(_standard(_toxicity), quick=(10, 100), full=(128, 70)),
    "adult": Source(_adult, quick=(10, 100), full=(20, 1000)),
    "adult-large": Source(_adult, quick=(20, 1000), full=(20, 2000)),
    "heart": Source(_standard(datasets.heart), quick=(5, 54), full=(5, 54)),
    "abalone": Source(_standard(datasets.abalone), quick=(5, 60), full=(10, 400)),
    "monks-1": Source(_standard(datasets.monks), quick=(10, 55), full=(10, 55)),
    "breast-cancer-wisconsin": Source(_standard(loaders.breast_cancer_wisconsin), quick=(10, 69), full=(10, 69)),
    "generated-alike": Dials(_nothing, quick=(10, 50), full=(50, 100), deals=False),
    "generated-apart": Dials(_nothing, quick=(10, 50), full=(50, 100), deals=False, shift=2.0),
    "generated-steep": Dials(_nothing, quick=(10, 50), full=(50, 100), deals=False, condition=1e4),
}
"""The data sets by name."""
