"""What an algorithm is, and the few questions that only some algorithms answer; no algorithm lives here."""
