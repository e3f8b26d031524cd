"""The way to the server where only an HTTP proxy leads outside: a listener on this machine that asks the proxy.

No driver of FLARE speaks to a proxy. So a party connects to this machine, under the server's name, and what it sends
goes through a tunnel of the proxy's (CONNECT), which proxies commonly grant to port 443. TLS is between the party and
the server as before; neither the proxy nor this listener can read it.
"""

import base64
import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from foedus.base.errors import FoedusError

CONNECT_SECONDS = 20.0  # for the proxy to answer
LONGEST_ANSWER = 2**14  # bytes of the proxy's answer
PIECE = 2**16  # bytes at a time


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy, and how to authenticate there."""

    host: str
    port: int
    authorization: str = ""

    @staticmethod
    def of(text: str) -> "Proxy":
        """Read HOST:PORT, or http://USER:PASSWORD@HOST:PORT."""
        parts = urlsplit(text if "//" in text else f"//{text}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme not in ("", "http") or not host or port is None:
            raise FoedusError(f"--proxy must be HOST:PORT, or http://USER:PASSWORD@HOST:PORT. Got {text!r} instead.")
        if parts.username is None:
            return Proxy(host, port)
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return Proxy(host, port, base64.b64encode(pair.encode()).decode())

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a connection to a server, through the proxy; raise OSError with what the proxy says."""
        connection = socket.create_connection((self.host, self.port), CONNECT_SECONDS)
        try:
            lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
            lines += [f"Proxy-Authorization: Basic {self.authorization}"] if self.authorization else []
            connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the server's
                byte = connection.recv(1)
                if not byte or len(answer) > LONGEST_ANSWER:
                    raise ConnectionError("the proxy has not answered in HTTP")
                answer += byte
            status = answer.split(b"\r\n")[0].decode("latin-1")
            if status.split(" ")[1:2] != ["200"]:
                raise ConnectionError(f"the proxy answers {status!r}")
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        return connection


def listen(
    proxy: Proxy, host: str, port: int, at: int, note: Callable[[str], None] = lambda line: None
) -> socketserver.ThreadingTCPServer:
    """Return a listener on this machine's port `at`, each of whose connections leads to HOST:PORT through the proxy."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                outside = proxy.connect(host, port)
            except OSError as error:
                return note(f"no way to {host}:{port} through {proxy.host}:{proxy.port}: {error}")
            with outside:
                _pump(self.request, outside)

    class Listener(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    try:
        return Listener(("127.0.0.1", at), Handler)
    except OSError as error:
        raise FoedusError(f"port {at} of this machine cannot be used: {error.strerror}.") from None


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Hand on all bytes in both directions until both ends have closed theirs."""

    def hand_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    back = threading.Thread(target=hand_on, args=(other, one), daemon=True)
    back.start()
    hand_on(one, other)
    back.join()


def tunnel(host: str, own: int, proxy: Proxy, port: int | None, note: Callable[[str], None]) -> None:
    """Lead what is sent to the server's name and port on this machine through a proxy, until it is interrupted.

    Args:
        host: the server's name.
        own: the server's port, by the kit.
        proxy: that leads outside.
        port: the port that the proxy is asked for, where it is another one.
        note: called with lines for the person who has started it.
    """
    with listen(proxy, host, port or own, own, note) as listener:
        if not _is_here(host):
            note(f"{host} must be this machine here: write '127.0.0.1 {host}' into /etc/hosts (of the container).")
        note(f"127.0.0.1:{own} leads to {host}:{port or own} through {proxy.host}:{proxy.port}.")
        listener.serve_forever()


def _is_here(host: str) -> bool:
    """Return whether a name is one of this machine."""
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None)} <= {"127.0.0.1", "::1"}
    except OSError:
        return False
