"""The constants of the interior-point methods; `tests/algorithms/test_interior_constants.py` needs each of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """The constants."""

    # both methods: whom to ask for whole shares
    streak: int = 3  # rounds that everybody must have answered before whole shares are asked for again

    # InteriorPoint: the barrier
    fall: float = 0.2  # μ becomes min(fall·μ, μ^power)
    power: float = 1.5
    central: float = 10.0  # a barrier problem is solved well enough when residuals are at most central·μ

    # InteriorPoint: which steps are accepted
    memory: int = 3  # a step is accepted where the merit is below its largest value at this many accepted points
    away: float = 2.0  # on rows that are not convex a step may raise Σ|c + s| by this factor, and by `leeway`
    leeway: float = 0.1

    # InteriorPoint: steps
    least_cut: float = 0.05  # a step that was rejected is shortened by a factor between these
    most_cut: float = 0.5
    shortest: float = 1e-3  # instead of a shorter step, the matrix is shifted
    longer: float = 10.0  # after a step along which the objective falls straight the next one is so many times longer
    boundary: float = 0.99  # the share of the way to the boundary that slacks and multipliers may go in one step
    hidden: float = 1.001  # a decrement that is so many times that with the larger shift is partly hidden by it

    # InteriorPoint: rows
    delta: float = 1e-8  # δ of a row whose |J|·|x| is moderate: a row's value is divided by δ, and so is its rounding
    least_share: float = 1e-3  # of δ, which is left there
    room: float = 0.2  # a first slack is at least this share of the party's largest row
    weight: float = 0.1  # first multipliers weigh this share of the gradient of f, and more than `many` rows share it
    many: int = 10
    least_product: float = 0.1  # s·z ≥ least_product·μ keeps products near the path

    # InteriorPoint: how a run ends
    far: float = 1e3  # a run ends where no point within so many units meets the terms, if they are convex
    same: float = 0.9  # a violation that is still above this share of that `memory` points ago does not shrink
    smaller: float = 0.7  # a residual below this share of its least so far is smaller
    patient: int = 10  # rounds with broken rows and nothing smaller, after which every point waits for all sites
    idle: int = 20  # rounds without a smaller stationarity at a small gap: a stall
    long_idle: int = 60  # rounds without anything smaller
    long: float = 0.02  # a relative step from a certified point that is this long points to a minimum at infinity

    # InteriorPoint: learnt curvature
    products: int = 128  # products with Jᵀ D J at most: k vectors of a message
    most_rounds: int = 8  # for which a point is asked about
    depth: int = 60  # pairs of L-BFGS that are kept: as many as there may be rounds

    # RobustInterior
    falls_after: tuple[tuple[float, float], ...] = ((0.7, 0.1), (0.2, 0.3), (0.0, 0.8))
    # μ falls to the second share of the error where steps were longer than the first
    bearable: float = 10.0  # times the error, at which a step that was shortened already is shortened again
    improved: float = 0.9  # an error below this share of another one is smaller
    patience: int = 12  # points that do not lessen the error, after which rounding has the last word
    allowed: float = 0.99  # share of the way to the boundary at which a site says yes
    least_kept: float = 0.3  # share of a slack or multiplier that a whole step leaves
    last_kept: float = 0.01  # and one that was shortened
    edge: float = 0.95  # share of the way to the boundary of a cone, and for steps that nothing holds back one by one
    first_product: float = 0.3  # the first complementarity products, relative to the loss


METHOD = Method()
