"""A slow line on loopback: a proxy that hands on every byte after a delay, and counts them."""

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from types import TracebackType

PIECE = 2**16  # bytes that are handed on at a time


class SlowLine:
    """Listens on 127.0.0.1 and hands on to a port of this machine what arrives, `delay` seconds later, both ways.

    Bytes are not held back otherwise: the line is long, not narrow. Use it in a `with` block.
    """

    def __init__(self, port: int, delay: float = 0.0):
        self.target, self.delay = port, delay
        self.up = self.down = 0  # bytes to the port, and from it
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.sockets: list[socket.socket] = []
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True, name="slow line").start()

    def __enter__(self) -> "SlowLine":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Cut all connections."""
        for one in (self.listener, *self.sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self.listener.accept()
            except OSError:  # it is closed
                return
            try:
                outer = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # nobody listens yet
                inner.close()
                continue
            for one in (inner, outer):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets += [inner, outer]
            self._carry(inner, outer, "up")
            self._carry(outer, inner, "down")

    def _carry(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        """Hand on what one end sends to the other: one thread reads, another writes when it is time."""
        pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def read() -> None:
            while True:
                try:
                    piece = source.recv(PIECE)
                except OSError:
                    piece = b""
                pieces.put((time.monotonic() + self.delay, piece))
                if not piece:
                    return
                with self.lock:
                    setattr(self, way, getattr(self, way) + len(piece))

        def write() -> None:
            while True:
                moment, piece = pieces.get()
                time.sleep(max(0.0, moment - time.monotonic()))
                try:
                    if not piece:
                        sink.shutdown(socket.SHUT_WR)
                        return
                    sink.sendall(piece)
                except OSError:
                    return

        for work in (read, write):
            threading.Thread(target=work, daemon=True, name=f"slow line {way}").start()


class LineApart:
    """A slow line in a process of its own, so that it waits for nobody's Python but its own."""

    def __init__(self, port: int, delay: float = 0.0):
        command = [sys.executable, "-P", __file__, str(port), str(delay)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = self._ask()[0]

    def _ask(self) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split()]

    @property
    def up(self) -> int:
        """Bytes to the port so far."""
        return self._ask()[1]

    @property
    def down(self) -> int:
        """Bytes from the port so far."""
        return self._ask()[2]

    def close(self) -> None:
        """End the process, and all connections with it."""
        self.process.kill()
        self.process.communicate()


def main() -> None:
    """Be a slow line: say the own port and the bytes both ways for every line that is read."""
    with SlowLine(int(sys.argv[1]), float(sys.argv[2])) as line:
        for _ in sys.stdin:
            print(line.port, line.up, line.down, flush=True)


if __name__ == "__main__":
    main()
