"""Sums that hide their terms: fixed point, masks that cancel, shares for sites that vanish, and both sides' sessions.

No algorithm and no transport is known here. `docs/federation.md` has the protocol in one page, with test vectors.
"""
