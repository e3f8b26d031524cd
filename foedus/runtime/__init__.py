"""Where rounds are played: in this process (`simulate`), or over several processes (`spread`).

What every runtime does in the same way is in `spine`. Algorithms and the statement of a problem do not live here: a
runtime calls an algorithm's functions and knows nothing of what they compute.
"""
