"""Numerical methods that know arrays and functions, but neither problems nor clients, rounds or messages.

Linear algebra (`lapack`, `spectrum`, `second_derivatives`), minimisation (`newton`, `lbfgs`, `limited_memory`), the
loop and the cone of interior-point methods (`interior`, `cone`) and the acceleration of fixed-point iterations
(`anderson`) live here. The algorithms that use them are in `foedus.algorithms`, the worst cases in `foedus.robust`.
"""
