"""The way to a server through an HTTP proxy: what goes in comes out, TLS stays between the ends, refusals are said."""

import base64
import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("cryptography")

from test_doctor import Authority, tls

from foedus.base.errors import FoedusError
from foedus.federation.flare.tunnel import Proxy, listen
from foedus.sums.authority import key_to_pem, new_key


@contextlib.contextmanager
def serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """A server on loopback; its port."""
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def proxy_for(asked: list[str], grants: bool = True) -> type[socketserver.BaseRequestHandler]:
    """A proxy that notes what it is asked for, and leads to loopback whatever the name."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.request.recv(1)
            asked.append(head.decode())
            if not grants:
                self.request.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                return
            port = int(head.split(b" ")[1].rpartition(b":")[2])
            with socket.create_connection(("127.0.0.1", port)) as outside:
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\nVia: a proxy\r\n\r\n")
                back = threading.Thread(target=copy, args=(outside, self.request), daemon=True)
                back.start()
                copy(self.request, outside)
                back.join()

    return Handler


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(4096):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


def echo(context: ssl.SSLContext | None = None) -> type[socketserver.BaseRequestHandler]:
    """A server that sends back all that it gets, once the other end has said that this is all."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.ExitStack() as stack:
                connection = self.request
                if context is not None:
                    connection = stack.enter_context(context.wrap_socket(connection, server_side=True))
                content = b""
                while not content.endswith(b"."):
                    content += connection.recv(65536)
                connection.sendall(content)

    return Handler


def said(connection: socket.socket, content: bytes) -> bytes:
    connection.sendall(content)
    answer = b""
    while len(answer) < len(content) and (piece := connection.recv(65536)):
        answer += piece
    return answer


def test_a_party_reaches_its_server_through_a_proxy_under_tls_of_its_own(tmp_path):
    authority, asked = Authority(), []
    key = new_key()
    (tmp_path / "client.crt").write_bytes(authority.certify("north", key))
    (tmp_path / "client.key").write_bytes(key_to_pem(key))
    with serving(echo(tls(authority, tmp_path))) as server, serving(proxy_for(asked)) as port:
        proxy = Proxy.of(f"http://north:a%40b@127.0.0.1:{port}")
        with listen(proxy, "fl.example.org", server, 0) as listener:
            threading.Thread(target=listener.serve_forever, daemon=True).start()
            context = ssl.create_default_context(cafile=str(tmp_path / "root.pem"))
            context.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
            content = bytes(2_000_000) + b"."
            for _ in range(2):
                with (
                    socket.create_connection(listener.server_address) as plain,
                    context.wrap_socket(plain, server_hostname="localhost") as connection,
                ):
                    assert said(connection, content) == content
            listener.shutdown()
    assert len(asked) == 2
    assert asked[0].startswith(f"CONNECT fl.example.org:{server} HTTP/1.1\r\n")
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'north:a@b').decode()}\r\n" in asked[0]


def test_what_a_proxy_refuses_is_said_and_closes_the_connection():
    notes: list[str] = []
    with (
        serving(proxy_for([], grants=False)) as port,
        listen(Proxy("127.0.0.1", port), "fl.example.org", 443, 0, notes.append) as listener,
    ):
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        with socket.create_connection(listener.server_address) as connection:
            assert connection.recv(1) == b""
        listener.shutdown()
    assert notes == [
        f"no way to fl.example.org:443 through 127.0.0.1:{port}: the proxy answers 'HTTP/1.1 403 Forbidden'"
    ]


@pytest.mark.parametrize("text", ["proxy", "https://proxy:3128", "proxy:high", ":3128", ""])
def test_a_proxy_that_is_none_is_refused(text):
    with pytest.raises(FoedusError, match="--proxy must be HOST:PORT"):
        Proxy.of(text)
