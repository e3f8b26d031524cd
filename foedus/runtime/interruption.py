"""Ctrl-C while rounds are played: the chunk that runs is finished first, so that nothing of it is lost."""

import signal
import threading
from types import FrameType


class Interruption:
    """Holds back Ctrl-C until a chunk is finished; a second one goes through at once."""

    def __init__(self) -> None:
        self.pending = False
        self.main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interruption":
        if self.main:
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True

    def __exit__(self, *error: object) -> None:
        if self.main:
            signal.signal(signal.SIGINT, self.previous)
