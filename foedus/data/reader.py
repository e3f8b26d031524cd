"""The process that reads large files ahead: asked for on its input, answered on its output (`ahead.py`)."""

import sys

from foedus.data import ahead, contents, tables
from foedus.engine import return_memory
from foedus.errors import FoedusError


def main() -> None:
    """Read the files that are asked for, and send each as soon as it is read; `null` stands for one that fails."""
    for path, form in [*ahead.orders_in(sys.stdin.buffer)]:
        try:
            table = tables.read(path, form)
            parsed = ahead.Parsed(dict(table.columns), table.form, table.dates)
            del table
            ahead.send(parsed, contents.digest_of(path), sys.stdout.buffer)
            del parsed
            return_memory()  # before the next file is read
        except FoedusError:
            sys.stdout.buffer.write(b"null\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
