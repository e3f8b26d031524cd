"""Runs over real sites: sessions of the server and of a site, which know no transport, and the NVIDIA FLARE classes.

`server`, `site`, `gate` and what they use take bytes and return bytes, so that tests play whole runs without FLARE.
`controller`, `executor`, `door`, `kits` and `console` carry those bytes over FLARE. What is computed in a round does
not live here: it is the algorithm's, and `foedus.runtime.spine` calls it.
"""
