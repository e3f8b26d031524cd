"""Sets as sums: the words of all sites come out of one masked sum, and nobody sees which site has which.

A site writes each of its words into a few cells of a table, chosen by the word's digest: one more entry, and the word's
digest and bytes as numbers. Tables are added up. A cell in which all entries are of one word says so by its digest;
that word is taken out of its other cells too, which makes more cells of that kind, until the table is empty (an
invertible Bloom lookup table; Goodrich and Mitzenmacher 2011). The size of a table depends on how many words it must
hold, and on nothing else.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foedus.errors import FoedusError

PARTS = 4  # cells that a word is written into, one in each part of the table
CHUNK = 5  # bytes in a number: a sum over 2^12 sites stays exact
CHUNKS = 13
LONGEST = CHUNK * CHUNKS  # bytes of a word, in UTF-8
WIDTH = 3 + CHUNKS  # entries, digest, length, bytes


@dataclass(frozen=True)
class WordTable:
    """A table for up to `most` different words.

    Example:
        >>> table = WordTable(most=10)
        >>> total = table.write(["red", "blue"]) + table.write(["blue"])
        >>> sorted(table.read(total).items())
        [('blue', 2), ('red', 1)]
    """

    most: int
    salt: str = ""

    @property
    def part(self) -> int:
        """Cells of one part: 2.4 times as many in all as words, where 1.3 times would nearly always do."""
        return -(-3 * self.most // 5) + 4

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the table of numbers."""
        return PARTS * self.part, WIDTH

    def write(self, words: Iterable[str]) -> np.ndarray:
        """Return a site's table; raise where a word is too long to be written."""
        table = np.zeros(self.shape)
        for word in set(words):
            if len(word.encode()) > LONGEST:
                raise FoedusError(f"a word takes more than {LONGEST} bytes.")
            table[self._places(word)] += self._row(word)
        return table

    def read(self, total: np.ndarray) -> dict[str, int]:
        """Return the words of a sum of tables, each with the number of sites that have it."""
        rest, words, found = np.rint(np.asarray(total)).astype(np.int64), {}, True
        while found and len(words) <= self.most:
            found = False
            for cell in range(len(rest)):
                entry = self._single(rest[cell])
                if entry is not None and cell in self._places(entry[0]):
                    word, count = entry
                    rest[self._places(word)] -= count * self._row(word).astype(np.int64)
                    words[word], found = words.get(word, 0) + count, True
        if np.any(rest):
            raise FoedusError(f"the sites have more than {self.most} different words together.")
        return words

    def _single(self, cell: np.ndarray) -> tuple[str, int] | None:
        """The word of a cell in which all entries are of one word, and how many they are; None otherwise."""
        count = int(cell[0])
        if count <= 0 or np.any(cell % count):
            return None
        length, chunks = int(cell[2]) // count, [int(n) // count for n in cell[3:]]
        if not 0 <= length <= LONGEST or not all(0 <= n < 256**CHUNK for n in chunks):
            return None
        try:
            word = b"".join(n.to_bytes(CHUNK, "big") for n in chunks)[:length].decode()
        except UnicodeDecodeError:
            return None
        return (word, count) if np.array_equal(self._row(word) * count, cell) else None

    def _digest(self, word: str) -> bytes:
        return hashlib.sha256(f"{self.salt}\n{word}".encode()).digest()

    def _places(self, word: str) -> list[int]:
        digest = self._digest(word)
        return [k * self.part + int.from_bytes(digest[4 * k : 4 * k + 4], "big") % self.part for k in range(PARTS)]

    def _row(self, word: str) -> np.ndarray:
        content = word.encode()
        padded = content.ljust(LONGEST, b"\0")
        chunks = [int.from_bytes(padded[k : k + CHUNK], "big") for k in range(0, LONGEST, CHUNK)]
        return np.array([1, int.from_bytes(self._digest(word)[-CHUNK:], "big"), len(content), *chunks], float)
