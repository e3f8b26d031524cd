"""A total of privacy that is kept by noise in shares."""

import foedus as fd

TOTAL = fd.Central(epsilon=1.0, delta=1e-5)
