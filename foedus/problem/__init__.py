"""What all parties know of a problem, and the data of each: losses, penalties, regularisers, constraints."""
