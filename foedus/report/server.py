"""A web server for the one page of `foedus watch`, which only this machine can reach."""

import functools
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from foedus.errors import FoedusError
from foedus.report import live, words
from foedus.report.html import assemble, body

# the Content-Security-Policy: nothing is loaded from elsewhere
SAFE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class Page(BaseHTTPRequestHandler):
    """The handler of requests: `/` is the page, and `/pulse` is a text that changes when the page does."""

    def __init__(self, folder: Path, *args: object) -> None:
        self.folder = folder
        super().__init__(*args)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        # a web site whose name resolves to 127.0.0.1 (DNS rebinding) must not be able to read the page
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in ("127.0.0.1", "localhost", "[::1]"):
            return self.answer(403, "this page is for this machine alone", "text/plain")
        if self.path not in ("/", "/pulse"):
            return self.answer(404, "there is only / and /pulse here", "text/plain")
        try:
            sight = live.look(self.folder)
            text = sight.pulse if self.path == "/pulse" else live.render(self.folder, sight)
        except (FoedusError, OSError) as error:  # a file that is being replaced, or a folder that is gone
            trouble = words.Verdict("bad", "Nothing to show", (str(error),), ("The page looks again by itself.",))
            again = live.LIVE.format(pulse="")
            text = "trouble" if self.path == "/pulse" else assemble("trouble", body("", trouble, [], [], []), [], again)
        return self.answer(200, text, "text/plain" if self.path == "/pulse" else "text/html")

    def answer(self, status: int, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", SAFE)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal quiet."""


def serve(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server for the page about `folder`, bound to 127.0.0.1; the caller runs and closes it."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Page, folder))
    except OSError as error:
        raise FoedusError(
            f"--port {port}: it cannot be used ({error.strerror}); leave it out to take one that is free."
        ) from None
