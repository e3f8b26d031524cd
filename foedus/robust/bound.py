"""A lower bound on the best possible worst case, by weak duality: one adversary that no model can do well against.

The robust objective Φ(w) is a maximum over everything that an adversary chooses: the weights q of the clients, the mass
b of each sample whose label turns, the share of the radius that is spent on ‖w‖, the slope a of each sample's loss and
the direction g of the norm. For any fixed choice the adversary's gain is linear in w,

    Φ(w) ≥ D + rᵀw   with   r = Σ_j p_j a_j x_j + μ L g + s,     s a subgradient of the regulariser,

so D is a lower bound of Φ(w) for every w if r = 0. The bound is found in three steps.

1. Smoothing (Nesterov 2005). A term of size τ is subtracted inside each maximum, which makes its maximiser unique and Φ
   smooth. L-BFGS minimises this function in whitened coordinates; at the minimiser its gradient, which is r, is small.
2. Repair. The slopes a are moved within their bounds so that r becomes 0 up to rounding.
3. The rest of r costs at most the largest |rᵀw| over the models that can be optimal. Where the radius is positive and
   no column is fixed, ‖w‖ of these is bounded; elsewhere the models considered are those whose root-mean-square
   prediction is at most 1e3 times that of the model found, of the labels, or 1.

The bound shares one function with the algorithms, the projection onto the clients' weights, which has its own tests
against CVXPY. So an error in the rounds shows as a gap.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from foedus.problem import losses
from foedus.problem.losses import Loss
from foedus.problem.regularizers import Regularizer, Zero
from foedus.robust.closed import ORDER, Ball
from foedus.robust.weights import Norm, nearest_weights

MOST_ROWS = 200_000  # with more rows, some thousand passes over them take too long
SMOOTHING = (1e-2, 1e-3, 1e-4, 1e-5)  # τ relative to the objective; each minimisation starts from the last minimiser
CLOSE = 1e-4  # a relative gap at which the search for a better bound ends
STEPS = 400  # of L-BFGS for each τ
PAIRS = 30  # in its memory
REPAIRS = 12  # Newton-like steps that move the slopes
FLAT = 1e-8  # eigenvalues of the Gram matrix below this share of the largest are raised to it in the whitening
NO_SMOOTHING = 1e-12  # a τ with which the smoothed objective is the objective itself
FAR = 1e3  # models whose predictions are larger by this factor are not considered where no radius bounds w


@dataclass(frozen=True)
class Game:
    """The robust problem with all samples in one place; `site` is the client of each row, `share` sums to 1 in each."""

    ball: Ball
    x: np.ndarray
    y: np.ndarray
    site: np.ndarray
    share: np.ndarray
    rho: np.ndarray
    kappa: float
    q_hat: np.ndarray
    theta: float
    p: Norm
    regularizer: Regularizer


@dataclass(frozen=True)
class Choice:
    """The adversary's choice at a model, in the letters above; `value` is the smoothed objective, `r` its gradient."""

    value: float
    r: np.ndarray
    q: np.ndarray
    mass: np.ndarray  # p of each sample with its own label
    flip_mass: np.ndarray  # and with the other label
    a: np.ndarray  # the slope with its own label
    a_flip: np.ndarray  # and with the other label
    norm_part: np.ndarray  # μ L g, over all columns
    constant: float  # the part of D that is no sample's: label moves in regression, and h(p) − sᵀp at a point p
    s: np.ndarray  # a subgradient of the regulariser at p


# --- losses as maxima over slopes: ℓ(z, y) = max over a in [low, high] of a·z − cost(a) ---


def sign_of(y: np.ndarray) -> np.ndarray:
    """The class as ±1."""
    return np.where(y > 0, 1.0, -1.0)


def response(loss: Loss, z: np.ndarray, y: np.ndarray, tau: float) -> np.ndarray:
    """The slope a that attains the loss; for a piecewise-linear loss, the loss less τa²/2."""
    from scipy.special import expit  # here and below where it is used: SciPy takes long to import

    if isinstance(loss, losses.Logistic):
        return -sign_of(y) * expit(-sign_of(y) * z)
    if isinstance(loss, losses.Hinge | losses.SmoothHinge):
        short = 1.0 - sign_of(y) * z
        return -sign_of(y) * np.clip(short / tau if isinstance(loss, losses.Hinge) else short, 0.0, 1.0)
    r = z - y
    if isinstance(loss, losses.Huber):
        return np.clip(r, -loss.eps, loss.eps)
    if isinstance(loss, losses.Pinball):
        return np.clip(r / tau, -loss.eps, 1.0 - loss.eps)
    assert isinstance(loss, losses.EpsilonInsensitive)
    return np.sign(r) * np.clip((np.abs(r) - loss.eps) / tau, 0.0, 1.0)


def conjugate(loss: Loss, a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The conjugate ℓ*(a), the cost of the slope a."""
    from scipy.special import xlogy

    s = np.abs(a)
    if isinstance(loss, losses.Logistic):
        return xlogy(s, s) + xlogy(1.0 - s, 1.0 - s)
    if isinstance(loss, losses.Hinge):
        return -s
    if isinstance(loss, losses.SmoothHinge):
        return 0.5 * s**2 - s
    if isinstance(loss, losses.Huber):
        return a * y + 0.5 * a**2
    return a * y + (loss.eps * s if isinstance(loss, losses.EpsilonInsensitive) else 0.0)


def ends(loss: Loss, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest slope of each sample."""
    if loss.kind == "classification":
        return np.where(y > 0, -1.0, 0.0), np.where(y > 0, 0.0, 1.0)
    low, high = (
        (-loss.eps, 1.0 - loss.eps) if isinstance(loss, losses.Pinball)
        else (-loss.eps, loss.eps) if isinstance(loss, losses.Huber) else (-1.0, 1.0)
    )  # fmt: skip
    return np.full(len(y), low), np.full(len(y), high)


def is_kinked(loss: Loss) -> bool:
    """Whether the loss is piecewise linear, so that it needs smoothing."""
    return isinstance(loss, losses.Hinge | losses.EpsilonInsensitive | losses.Pinball)


# --- the other maxima ---


def _direction(w: np.ndarray, metric: str, tau: float) -> np.ndarray:
    """The g with ‖g‖ ≤ 1 in the metric's norm that attains gᵀw − τ‖g‖²/2: the projection of w/τ."""
    u = w / tau
    if metric == "linf":
        return np.clip(u, -1.0, 1.0)
    if metric == "l2":
        return u / max(1.0, float(np.linalg.norm(u)))
    if np.sum(np.abs(u)) <= 1.0:
        return u
    # entries as they are below the largest one, which may be so large that 1 is lost beside it
    below = np.abs(u) - np.max(np.abs(u))
    descending = np.sort(below)[::-1]
    excess = (np.cumsum(descending) - 1.0) / np.arange(1, len(u) + 1)
    cut = excess[np.flatnonzero(descending > excess)[-1]]
    g = np.sign(u) * np.maximum(below - cut, 0.0)
    return g / max(1.0, float(np.sum(np.abs(g))))


def _turning(gain: np.ndarray, share: np.ndarray, budget: float, tau: float) -> np.ndarray:
    """The masses b in [0, share] with Σb ≤ budget that maximise Σ gain·b − τb²/(2·share).

    b = share·clip((gain − price)/τ, 0, 1), where the price of the budget is 0 or makes Σb the budget.
    """
    price = 0.0
    if float(share @ np.clip(gain / tau, 0.0, 1.0)) > budget:
        # Σ share·clip((gain − t)/τ, 0, 1) is piecewise linear in t: its slope changes at gain − τ and at gain
        t = np.concatenate([gain - tau, gain])
        bend = np.concatenate([-share, share]) / tau
        order = np.argsort(t)
        t, slope = t[order], np.cumsum(bend[order])
        total = float(np.sum(share)) + np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(t))])
        price = float(np.interp(-budget, -total, t))
    b = share * np.clip((gain - price) / tau, 0.0, 1.0)
    return b * min(1.0, budget / max(float(np.sum(b)), 1e-300))


def _choose(game: Game, w: np.ndarray, tau: float, size: float) -> Choice:
    """The adversary's answer to w and the smoothed objective there; `size` is a typical ‖w‖ per unit of the objective.

    The maxima are nested, slopes inside labels inside the radius inside the weights, and are taken in this order.
    """
    ball, loss, y, S = game.ball, game.ball.loss, game.y, len(game.rho)
    bend = tau if is_kinked(loss) else 0.0
    z = game.x @ w
    a = response(loss, z, y, tau)
    value = a * z - conjugate(loss, a, y) - 0.5 * bend * a**2
    # the norm; its smoothing is scaled so that ρ·L times it is τ at most
    moving = w[:-1] if ball.intercept else w
    widest = ball.lipschitz * float(np.max(game.rho, initial=0.0))
    soft = tau / widest if widest > 0 else 1.0
    g = _direction(moving, ball.metric, soft)
    norm = float(g @ moving - 0.5 * soft * g @ g)
    b, a_flip = np.zeros(len(y)), np.zeros(len(y))
    V = np.bincount(game.site, game.share * value, S)
    on_norm, labels = game.rho * ball.lipschitz, np.zeros(S)
    if ball.classifies and np.isfinite(game.kappa) and widest > 0:
        # a label that turns gains `other − value` and costs κ of the radius, which is then missing from the norm
        a_flip = response(loss, z, -sign_of(y), tau)
        other = a_flip * z - conjugate(loss, a_flip, y) - 0.5 * bend * a_flip**2
        gain = other - value - game.kappa * ball.lipschitz * norm
        for s in np.flatnonzero(game.rho > 0):
            rows = game.site == s
            b[rows] = _turning(gain[rows], game.share[rows], game.rho[s] / game.kappa, tau)
        safe = np.where(game.share > 0, game.share, 1.0)
        V = V + np.bincount(game.site, b * (other - value) - 0.5 * tau * b**2 / safe, S)
        flip_cost = game.kappa * np.bincount(game.site, b, S)
        on_norm = ball.lipschitz * np.maximum(game.rho - flip_cost, 0.0)
    elif not ball.classifies and np.isfinite(game.kappa):
        # the worst case is ρ·L·max{‖w‖, 1/κ}: `part` of the radius moves x, the rest moves labels
        part = float(np.clip((norm - 1.0 / game.kappa) / soft, 0.0, 1.0))
        labels = on_norm * ((1.0 - part) / game.kappa)
        V = V + labels - on_norm * 0.5 * soft * part**2
        on_norm = on_norm * part
    V = V + on_norm * norm
    # the clients' weights, by the projection of q̂ + V/τ onto Q
    q = game.q_hat
    if game.theta > 0 and S > 1:
        q = nearest_weights(game.q_hat + V / tau, game.q_hat, game.theta, game.p)
    total = float(q @ V - 0.5 * tau * np.sum((q - game.q_hat) ** 2))
    mass, flip_mass = q[game.site] * (game.share - b), q[game.site] * b
    norm_part = np.zeros(len(w))
    norm_part[: len(moving)] = float(q @ on_norm) * g
    s, h_constant = np.zeros(len(w)), 0.0
    if not isinstance(game.regularizer, Zero):
        # the Moreau envelope of h, whose gradient s is a subgradient of h at the prox point
        step = tau * size**2
        at = np.asarray(game.regularizer.prox(jnp.asarray(w), step))
        s = (w - at) / step
        h = float(game.regularizer.value(jnp.asarray(at)))
        total, h_constant = total + h + 0.5 * step * float(s @ s), h - float(s @ at)
    r = game.x.T @ (mass * a + flip_mass * a_flip) + norm_part + s
    return Choice(total, r, q, mass, flip_mass, a, a_flip, norm_part, float(q @ labels) + h_constant, s)


# --- the bound ---


def whitening(game: Game) -> np.ndarray:
    """The matrix T with w = Tv for which ‖v‖ is the root-mean-square prediction of w.

    Columns are scaled first, so that columns of very different sizes do not spoil the eigenvectors.
    """
    gram = game.x.T @ ((game.q_hat[game.site] * game.share)[:, None] * game.x)
    unit = 1.0 / np.sqrt(np.where(np.diag(gram) > 0, np.diag(gram), 1.0))
    values, vectors = np.linalg.eigh(unit[:, None] * gram * unit)
    largest = values[-1] if values[-1] > 0 else 1.0  # 0 where every column is
    return unit[:, None] * vectors / np.sqrt(np.maximum(values, FLAT * largest))


def repair(game: Game, at: Choice, T: np.ndarray) -> tuple[float, np.ndarray]:
    """The bound D and the rest of r in whitened coordinates, after the slopes have moved so as to make r vanish.

    Each step is the least change of the slopes that makes r zero, weighed by the room to the bounds: slopes at a bound
    stay. It is repeated because slopes are clipped to their bounds.
    """
    loss, count = game.ball.loss, len(game.y)
    flips = np.flatnonzero(at.flip_mass > 0)
    y = np.concatenate([game.y, -sign_of(game.y[flips])])
    rows = np.concatenate([np.arange(count), flips])
    mass = np.concatenate([at.mass, at.flip_mass[flips]])
    a = np.concatenate([at.a, at.a_flip[flips]])
    low, high = ends(loss, y)
    a = np.clip(a, low, high)
    white = (game.x @ T)[rows]
    rest = T.T @ (at.norm_part + at.s)
    for _ in range(REPAIRS):
        r = white.T @ (mass * a) + rest
        room = np.minimum(a - low, high - a)
        system = white.T @ ((mass * room)[:, None] * white)
        if not np.all(np.isfinite(system)):
            break
        step = room * (white @ (np.linalg.pinv(system, hermitian=True) @ r))
        following = np.clip(a - step, low, high)
        if np.linalg.norm(white.T @ (mass * following) + rest) >= np.linalg.norm(r):
            break
        a = following
    D = at.constant - float(mass @ conjugate(loss, a, y))
    return D, white.T @ (mass * a) + rest


def _value(regularizer: Regularizer, w: np.ndarray) -> float:
    return 0.0 if isinstance(regularizer, Zero) else float(regularizer.value(jnp.asarray(w)))


def at_zero(game: Game) -> float:
    """The robust objective of the model w = 0; infinite where the regulariser does not allow it."""
    w = np.zeros(game.x.shape[1])
    plain = replace(game, regularizer=Zero())
    return _choose(plain, w, NO_SMOOTHING, 1.0).value + _value(game.regularizer, w)


@dataclass(frozen=True)
class Horizon:
    """The models among which the best one is: see step 3. T whitens, w = Tv, and `best` is the objective of some model.

    A model with ρ·L·‖w‖ > best is worse than that one; `spread` is ρ·L, or 0 where no radius bounds every column.
    """

    T: np.ndarray
    v: np.ndarray  # the model that was found
    best: float
    reach: float  # the largest root-mean-square prediction that is considered
    spread: float
    order: float

    @staticmethod
    def of(game: Game, w: np.ndarray, best: float) -> "Horizon":
        """The horizon around the model w."""
        T = whitening(game)
        v = np.linalg.solve(T, w)
        labels = 1.0 if game.ball.classifies else float(np.sqrt(np.mean(game.y**2)))
        bounds = not game.ball.intercept and game.ball.support == "everything"
        spread = float(game.q_hat @ game.rho) * game.ball.lipschitz if bounds else 0.0
        far = FAR * max(1.0, labels, float(np.linalg.norm(v)))
        return Horizon(T, v, best, far, spread, ORDER[game.ball.metric])

    def least(self, D: float, r: np.ndarray) -> float:
        """The least of D + rᵀw over these models, where r is in whitened coordinates; at least 0, at most `best`."""
        cost = self.reach * float(np.linalg.norm(r))
        if self.spread > 0:
            there = np.linalg.solve(self.T.T, r)
            cost = min(cost, self.best / self.spread * float(np.linalg.norm(there, ord=self.order)))
        return float(np.clip(D - cost, 0.0, self.best)) if np.isfinite(D - cost) else 0.0


def lower_bound(game: Game, w: np.ndarray, value: float, zero: float) -> float:
    """A lower bound of the objective of every model, where samples may be anywhere.

    The search starts at w, whose objective is `value`, or at 0, whose objective is `zero`, whichever is better.
    """
    from scipy.optimize import minimize

    horizon = Horizon.of(game, w if value <= zero else np.zeros(len(w)), min(value, zero))
    T, v, best = horizon.T, horizon.v, horizon.best
    scale = max(best, 1e-6 * zero if np.isfinite(zero) else 0.0, 1e-300)
    size = max(float(np.linalg.norm(T @ v)), 1e-3) / scale
    lower = 0.0  # no loss and no regulariser is negative
    for share in SMOOTHING:
        tau = share * scale

        def smooth(v: np.ndarray, tau: float = tau) -> tuple[float, np.ndarray]:
            at = _choose(game, T @ v, tau, size)
            return at.value / scale, T.T @ at.r / scale

        v = minimize(
            smooth, v, jac=True, method="L-BFGS-B",
            options={"maxiter": STEPS, "maxcor": PAIRS, "ftol": 1e-14, "gtol": 1e-7 * share},
        ).x  # fmt: skip
        lower = max(lower, horizon.least(*repair(game, _choose(game, T @ v, tau, size), T)))
        if best - lower <= CLOSE * scale:
            break
    return lower
