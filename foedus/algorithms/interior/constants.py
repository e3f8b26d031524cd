"""The constants of the interior-point methods; `tests/algorithms/test_interior_constants.py` needs each of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """The constants."""

    # both methods: whom to ask for whole shares
    streak: int = 3  # rounds that everybody must have answered before whole shares are asked for again

    # InteriorPoint: the barrier
    fall: float = 0.2  # μ becomes min(fall·μ, μ^power), and not less than floor
    power: float = 1.5
    floor: float = 1e-18
    enough: float = 0.01  # of ε²: a smaller μ is of no use, for a row that hardly binds has slack and multiplier √μ
    near: float = 0.01  # of ε1: μ need not wait for a smaller stationarity
    central: float = 10.0  # a barrier problem is solved well enough when residuals are at most central·μ

    # InteriorPoint: which steps are accepted
    memory: int = 3  # a step is accepted where the merit is below its largest value at this many accepted points
    away: float = 2.0  # on rows that are not convex a step may raise Σ|c + s| by this factor, and by `leeway`
    leeway: float = 0.1

    # InteriorPoint: steps
    least_cut: float = 0.05  # a step that was rejected is shortened by a factor between these
    most_cut: float = 0.5
    shortest: float = 1e-3  # instead of a shorter step, the matrix is shifted
    straight: float = 1e-3  # a step is straight up to this share of its fall
    longer: float = 10.0  # and the next one is so many times longer
    boundary: float = 0.99  # the share of the way to the boundary that slacks and multipliers may go in one step
    least_room: float = 0.01  # a step is tried at least at this share, whatever the slacks of the server's rows
    least_shift: float = 1e-12  # added to the unit diagonal of the scaled matrix
    gentle_shift: float = 1e-7  # a larger one, which `refinements` undo
    refinements: int = 5
    hidden: float = 1.001  # a decrement that is so many times that with the larger shift is partly hidden by it
    least_diagonal: float = 1e-40  # of the largest entry: a smaller one is no curvature but rounding
    flat: float = 1e-9  # the least curvature of a scaled matrix that is not positive definite

    # InteriorPoint: rows
    delta: float = 1e-8  # δ of a row whose |J|·|x| is moderate: a row's value is divided by δ, and so is its rounding
    clear: float = 1e-13  # of |J|·|x|: distances between this and `small` allow a smaller δ
    small: float = 1e-4
    hard: float = 10.0  # a convex row that pulls so many times harder than the objective has a long way to go
    least_share: float = 1e-3  # of δ, which is left there
    room: float = 0.2  # a first slack is at least this share of the party's largest row
    weight: float = 0.1  # first multipliers weigh this share of the gradient of f, and more than `many` rows share it
    many: int = 10
    rates: tuple[float, float] = (1e-3, 1e6)  # of the objective per unit of a row, which a first multiplier follows
    spread: float = 1e6  # z ≤ spread·μ/s and s·z ≥ least_product·μ keep products near the path
    least_product: float = 0.1
    heavy: float = 1e13  # Σz² at most: without an end where terms contradict each other, and masked sums have a range
    guess: float = 0.1  # a coupled row's multiplier weighs this share of ∇f_i while the server has none

    # InteriorPoint: how a run ends
    sure: float = 0.1  # of eps1: a stationarity that is predicted to be below this needs gradients alone
    far: float = 1e3  # a run ends where no point within so many units meets the terms, if convex; `farther` if not
    farther: float = 1e6
    same: float = 0.9  # a violation that is still above this share of that `memory` points ago does not shrink
    rounding: float = 1e-12  # of the largest coordinate: a row broken by this little is met
    deep: float = 1e10  # an objective that has fallen by this share of 1 + |f| is called unbounded
    smaller: float = 0.7  # a residual below this share of its least so far is smaller
    falls: float = 1e-9  # of 1 + |f|: so much lower is the objective to count as smaller
    lower: float = 1e-6  # and so much the merit
    patient: int = 10  # rounds with broken rows and nothing smaller, after which every point waits for all sites
    idle: int = 20  # rounds without a smaller stationarity at a small gap: a stall
    long_idle: int = 60  # rounds without anything smaller
    steep: float = 1e4  # multipliers larger than 1 + ‖∇f‖_∞ by this factor are named where no certificate was found
    long: float = 0.02  # a relative step from a certified point that is this long points to a minimum at infinity

    # InteriorPoint: learnt curvature
    products: int = 128  # products with Jᵀ D J at most: k vectors of a message
    most_products: int = 25_000_000  # numbers in all sites' products of a round, which a simulation holds at once
    most_rounds: int = 8  # for which a point is asked about
    spare: int = 4  # products beyond the number of rows, which keep the core YΩᵀ well conditioned
    no_rank: float = 1e-13  # of the core's largest eigenvalue: directions in which no row acts
    depth: int = 60  # pairs of L-BFGS that are kept: as many as there may be rounds
    least_curvature: float = 1e-6  # of the mean: a smaller one would make a coordinate's first step too long
    learnt_refinements: int = 2  # of a solution, which loses digits to weights D that differ by many orders

    # RobustInterior
    falls_after: tuple[tuple[float, float], ...] = ((0.7, 0.1), (0.2, 0.3), (0.0, 0.8))
    # μ falls to the second share of the error where steps were longer than the first
    bearable: float = 10.0  # times the error, at which a step that was shortened already is shortened again
    short: float = 0.05  # shares of a step below this are taken, whatever the error
    improved: float = 0.9  # an error below this share of another one is smaller
    patience: int = 12  # points that do not lessen the error, after which rounding has the last word
    close: float = 1e-4  # the relative error at which that counts as converged
    least_scale: float = 1e-2  # of the first objective: where the optimum is all but 0, its share is impossible
    no_step: float = 0.01  # the step where nobody says yes
    allowed: float = 0.99  # share of the way to the boundary at which a site says yes
    least_kept: float = 0.3  # share of a slack or multiplier that a whole step leaves
    last_kept: float = 0.01  # and one that was shortened
    edge: float = 0.95  # share of the way to the boundary of a cone, and for steps that nothing holds back one by one
    first_product: float = 0.3  # the first complementarity products, relative to the loss
    apart: float = 0.1  # the least share of the largest piece that counts as the loss there


METHOD = Method()
