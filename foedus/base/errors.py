"""The one kind of error a user's mistake raises: a sentence that says what was found and what was expected."""

import difflib
from collections.abc import Iterable


class FoedusError(ValueError):
    """A wrong input. The message is one sentence for the user; the command line prints it and exits with 2."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean …?' when `word` is close to a known name, else an empty string."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return f" Did you mean {names[close[0]]!r}?" if close else ""
