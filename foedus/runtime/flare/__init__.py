"""The protocol over real sites: sessions that know no transport, and the NVIDIA FLARE classes that carry their bytes."""
