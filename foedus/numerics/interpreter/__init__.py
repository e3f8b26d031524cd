"""Programs that NumPy plays: what JAX traced, without a compilation.

Compiling an iteration of a second-order method takes seconds, and such a method needs some tens of iterations. On small
data it is faster to trace its functions once and to play the operations one by one. `program.py` makes a list of
operations of a traced function; `operations.py`, `linear_algebra.py`, `indexing.py` and `random_bits.py` have these in
NumPy, `sparse.py` some of them for tables that are mostly zeros; and `dispatch.py` chooses between the two ways by the
size of the arguments alone, so that the same call always takes the same way and gives the same bits.
"""
