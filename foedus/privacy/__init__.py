"""Differential privacy of what clients send: clipping, sensitivities, noise, composition and the ledger.

The private forms of the algorithms live in `foedus.algorithms`, and the ledger that a real site keeps for itself in
`foedus.federation.site_ledger`.
"""
