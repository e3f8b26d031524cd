"""Interior-point methods in which a round is an iteration, sites eliminate what is their own, and the server adds up.

`rounds` is the engine: the question about a point, the answer as a share in a sum, and what the server has of the sites
that stay silent. On it stand two methods, with their constants in `constants`:

    InteriorPoint    interior_point, parties (form, learnt)
    RobustInterior   robust_interior, robust_site or robust_polyhedron (robust_rows), for DRFL, AFL and WAFL

A party takes its own variables along with a step of the shared ones (`recover`), and leaves a matrix and vectors over
the shared ones (`eliminate`). InteriorPoint's own variables are slacks and multipliers of rows, which need not be met
on the way, so that a merit function judges steps and rows that are not convex are taken. RobustInterior's own variables
(λ, α) are feasible at all times, the problem is convex, and an estimate of the distance to the optimum judges steps.
"""
