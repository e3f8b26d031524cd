"""The delaying proxy on loopback with which federations are measured."""

import socket
import threading
import time

import pytest

from foedus_lab.benchmarks.federation import Meter
from foedus_lab.benchmarks.slow_line import LineApart, SlowLine


@pytest.fixture
def echo():
    """A server that sends back what it gets; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            with one:
                while piece := one.recv(1024):
                    one.sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_every_byte_arrives_in_order_after_the_delay_both_ways_and_is_counted(echo):
    with SlowLine(echo, 0.05) as line, socket.create_connection(("127.0.0.1", line.port)) as one:
        for size in (1, 3000):
            words = bytes(i % 251 for i in range(size))
            began = time.monotonic()
            one.sendall(words)
            back = b""
            while len(back) < size:
                back += one.recv(4096)
            assert back == words
            assert time.monotonic() - began >= 0.1
        assert (line.up, line.down) == (3001, 3001)


def test_the_line_can_be_cut(echo):
    line = SlowLine(echo)
    with socket.create_connection(("127.0.0.1", line.port)) as one:
        one.sendall(b"a")
        assert one.recv(1) == b"a"
        line.close()
        assert one.recv(1) == b""


def test_a_line_in_a_process_of_its_own_delays_and_counts_the_same_and_ends_with_it(echo):
    line = LineApart(echo, 0.05)
    try:
        with socket.create_connection(("127.0.0.1", line.port)) as one:
            began = time.monotonic()
            one.sendall(b"abc")
            assert one.recv(3) == b"abc"
            assert time.monotonic() - began >= 0.1
            assert (line.up, line.down) == (3, 3)
            line.close()
            assert one.recv(1) == b""
    finally:
        line.close()
    assert line.process.returncode is not None


def test_a_meter_gives_what_a_round_takes():
    values = iter([5.0, 7.0, 13.0])
    meter = Meter(lambda: next(values))

    class History:
        def __init__(self, rounds: int):
            self.rounds = rounds

        def last(self) -> dict[str, float]:
            return {}

    for rounds in (3, 10, 12, 14):  # the first is within the warm-up
        meter(History(rounds))
    assert meter.per_round == pytest.approx(2.0)
