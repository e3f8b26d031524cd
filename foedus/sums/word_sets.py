"""Sets of words that are joined by adding up: the words that any site has, and not who has them.

A set becomes a table of cells, by an invertible Bloom lookup table (Goodrich and Mitzenmacher 2011). A word belongs to
one cell of each quarter of the table, by a hash, and adds to it 1, its letters as whole numbers, and a check of them.
So the sum of the sites' tables is the table of all their words, each as often as there are sites that have it. A cell
in which k sites have put the same word holds k times that word: it can be read, and taken out of its other
cells, which may then be read in turn. Where words hide each other to the end, another salt sorts them otherwise.

Who sees the sum learns the words and how many sites have each, which is what the sum says; nothing else is in it.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foedus.base.errors import FoedusError

PIECE, PIECES = 6, 10  # bytes of a word in one 64-bit word, so that sums over 2^13 sites fit; and pieces of a word
LONGEST = PIECE * PIECES  # bytes of a word in UTF-8
CHECK = 1 + PIECES  # a cell holds how many, the pieces, and the check
QUARTERS = 4
SPARE = 4  # cells of a quarter beside one for every two words


@dataclass(frozen=True)
class WordTable:
    """The table of a set of words; all parties work with the same capacity and salt.

    Args:
        capacity: the most different words that it is made for.
        salt: sorts the words into cells.

    Example:
        >>> table = WordTable(capacity=5, salt=b"ward")
        >>> table.words_of(table.encode(["surgery", "eye"]) + table.encode(["eye", "ear"]))
        ('ear', 'eye', 'surgery')
    """

    capacity: int
    salt: bytes

    @property
    def quarter(self) -> int:
        """The cells of a quarter; the whole has twice as many cells as words."""
        return (self.capacity + 1) // 2 + SPARE

    @property
    def size(self) -> int:
        """The 64-bit words of the table."""
        return QUARTERS * self.quarter * (CHECK + 1)

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Return the table of a set of words, int64."""
        cells = np.zeros((QUARTERS * self.quarter, CHECK + 1), np.int64)
        for word in {*words}:
            content = word.encode()
            if len(content) > LONGEST or content.endswith(b"\0"):
                raise FoedusError(f"the word {word[:20]!r}… takes {len(content)} bytes; masked sums take {LONGEST}.")
            entry, places = self._entry(content.ljust(LONGEST, b"\0"))
            cells[places] += entry
        return cells.ravel()

    def words_of(self, total: np.ndarray) -> tuple[str, ...] | None:
        """Return the words of a sum of tables, in order; None where they cannot all be read."""
        cells = total.reshape(-1, CHECK + 1).copy()
        words: set[str] = set()
        queue = [*range(len(cells))]
        while queue:
            place = queue.pop()
            count = int(cells[place, 0])
            if count <= 0 or np.any(cells[place] % count):
                continue
            pieces = cells[place, 1:CHECK] // count
            if np.any(pieces < 0) or np.any(pieces >= 2 ** (8 * PIECE)):
                continue
            content = b"".join(int(piece).to_bytes(PIECE, "big") for piece in pieces)
            entry, places = self._entry(content)
            if place not in places or np.any(cells[place] != count * entry):
                continue
            cells[places] -= count * entry
            queue.extend(places)
            try:
                words.add(content.rstrip(b"\0").decode())
            except UnicodeDecodeError:
                return None
        return None if np.any(cells) else tuple(sorted(words))

    def _entry(self, content: bytes) -> tuple[np.ndarray, list[int]]:
        """Return what a word adds to a cell, and its cells."""
        digest = hashlib.blake2b(content, key=hashlib.sha256(self.salt).digest(), digest_size=40).digest()
        places = [
            k * self.quarter + int.from_bytes(digest[8 * k : 8 * k + 8], "big") % self.quarter for k in range(QUARTERS)
        ]
        pieces = [int.from_bytes(content[k : k + PIECE], "big") for k in range(0, LONGEST, PIECE)]
        return np.array([1, *pieces, int.from_bytes(digest[32 : 32 + PIECE], "big")], np.int64), places
