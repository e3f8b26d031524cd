"""A web server for the one page of `foedus watch`, which only this machine can reach."""

import functools
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

from foedus.app.report import live, words
from foedus.app.report.html import assemble, body
from foedus.base.errors import FoedusError

# the Content-Security-Policy: nothing is loaded from elsewhere
SAFE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class Show(Protocol):
    """What is shown: a page, and a text that changes whenever the page does."""

    def pulse(self) -> str: ...

    def page(self) -> str: ...


class FolderShow:
    """The show of a run folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def pulse(self) -> str:
        return live.look(self.folder).pulse

    def page(self) -> str:
        return live.render(self.folder, live.look(self.folder))


class Page(BaseHTTPRequestHandler):
    """The handler of requests: `/` is the page, and `/pulse` is a text that changes when the page does."""

    def __init__(self, show: Show, *args: object) -> None:
        self.show = show
        super().__init__(*args)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        # a web site whose name resolves to 127.0.0.1 (DNS rebinding) must not be able to read the page
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in ("127.0.0.1", "localhost", "[::1]"):
            return self.answer(403, "this page is for this machine alone", "text/plain")
        if self.path not in ("/", "/pulse"):
            return self.answer(404, "there is only / and /pulse here", "text/plain")
        try:
            text = self.show.pulse() if self.path == "/pulse" else self.show.page()
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


def serve(show: Show | Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server for a page, or the one about a run folder, bound to 127.0.0.1; the caller runs and closes it."""
    show = FolderShow(show) if isinstance(show, Path) else show
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Page, show))
    except OSError as error:
        raise FoedusError(
            f"--port {port}: it cannot be used ({error.strerror}); leave it out to take one that is free."
        ) from None
