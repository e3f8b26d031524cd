"""Runs over real sites: sessions of the server and of a site, which know no transport, and FLARE as one.

`server`, `site`, `gate` and what they use take bytes and return bytes, so that tests play whole runs without FLARE.
`flare/` carries those bytes over NVIDIA FLARE. What is computed in a round does
not live here: it is the algorithm's, and `foedus.runtime.spine` calls it.
"""
