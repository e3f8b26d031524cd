"""The protocol over real sites: sessions that know no transport, and the FLARE classes that carry their bytes."""
