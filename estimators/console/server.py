"""The web server of the pages, on 127.0.0.1, in its own thread: only for a browser that was opened with its link.

1. The link opens the console once, and gives the browser a cookie.
2. A cookie of 127.0.0.1 is sent to every port, also to another user's program. So the cookie is bound to a secret path.
3. The Host check defeats DNS rebinding; the Origin and Sec-Fetch-Site checks refuse requests of foreign pages.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from types import TracebackType

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from estimators.console.jobs import JobSource
from estimators.console.pages import Pages
from estimators.errors import EstimatorError

_HOST = "127.0.0.1"
_CONNECTIONS = 64
_COOKIE = "smddp-console"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # no-referrer would take the Origin from a form, too
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
# Not a redirect: a redirect of a click on a foreign page counts as cross-site, so the browser would withhold the
# cookie, which is SameSite=Strict.
_ENTERED = """<!doctype html><meta charset="utf-8"><title>smddp console</title>
<link rel="icon" href="{root}/static/icon.svg"><meta http-equiv="refresh" content="0; url={root}/">
<p><a href="{root}/">Open the console</a>"""
_USED = "This link was used, or is not this console's. The terminal that it runs in shows the next one.\n"
_CLOSED = "The console opens by the link that it shows in its terminal.\n"


class Console:
    """Serves the pages inside a ``with`` block.

    Examples:
        >>> with Console(JobSource(name="here", session=session)) as console:
        ...     print(console.link)
    """

    def __init__(self, source: JobSource, *, port: int = 0, entered: Callable[[str], object] = lambda _: None) -> None:
        """Bind the port of 127.0.0.1, 0 for any free one, or raise EstimatorError. Serves nothing yet.

        `entered` receives the next link each time one is used.
        """
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only on such a socket
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((_HOST, port))
        except OSError as error:
            self._socket.close()
            raise EstimatorError(
                f"the console can't listen on port {port} of {_HOST}: {error.strerror}. Give another --port, or 0 for "
                "any free one."
            ) from error
        root = new_root()
        self._pages = Pages(source, root)
        self._link_auth = LinkAuth(self._pages.app(), root=root, port=self._socket.getsockname()[1], entered=entered)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._link_auth,
                access_log=False,  # it would log the secret links
                log_level="warning",
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="console", daemon=True)

    @property
    def link(self) -> str:
        """The link that opens the console once, in one browser."""
        return self._link_auth.link

    def __enter__(self) -> Console:
        self._socket.listen()  # from now on connections queue until the thread accepts them
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pages.watches.close()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether the console still answers."""
        self._thread.join(seconds)
        return self._thread.is_alive()


class LinkAuth:
    """An ASGI application that passes authorised requests to `inner`, and refuses all others."""

    def __init__(self, inner: ASGIApp, *, root: str, port: int, entered: Callable[[str], object]) -> None:
        """Make the first link to pages on 127.0.0.1:`port`, all below the secret path `root` (see `new_root`).

        `entered` receives the next link each time one is used.
        """
        self._inner = inner
        self._root = root
        self._origin = f"http://127.0.0.1:{port}"
        self._hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self._entered = entered
        self._cookie = secrets.token_urlsafe(32)
        self._token = secrets.token_urlsafe(32)

    @property
    def link(self) -> str:
        """The link that opens the console once."""
        return f"{self._origin}{self._root}/open?token={self._token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return  # nothing here speaks WebSocket: uvicorn refuses it
        headers = Headers(scope=scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._refusal(scope, headers) or self._inner
        if scope["path"] == f"{self._root}/open" and headers.get("host") in self._hosts:
            answer = self._open(scope)
        await answer(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host, path, method = headers.get("host"), scope["path"], scope["method"]
        if host not in self._hosts:
            return PlainTextResponse("This server answers to 127.0.0.1 only.\n", 403)
        if not path.startswith(f"{self._root}/") or not self._has_cookie(headers):
            return PlainTextResponse(_CLOSED, 403)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("Requests of other pages are refused.\n", 403)
        if method not in ("GET", "HEAD") and headers.get("origin") != f"http://{host}":
            return PlainTextResponse("Only the console's own pages may change anything.\n", 403)
        return None

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        except CookieError:
            return False
        return morsel is not None and _equal(morsel.value, self._cookie)

    def _open(self, scope: Scope) -> Response:
        token = dict(part.partition(b"=")[::2] for part in scope["query_string"].split(b"&")).get(b"token", b"")
        if scope["method"] != "GET" or not _equal(token.decode("latin-1"), self._token):
            return PlainTextResponse(_USED, 403)
        self._token = secrets.token_urlsafe(32)
        self._entered(self.link)
        answer = HTMLResponse(_ENTERED.format(root=self._root))
        answer.set_cookie(_COOKIE, self._cookie, path=f"{self._root}/", httponly=True, samesite="strict")
        return answer


def new_root() -> str:
    """Return a random path that nobody can guess."""
    return f"/{secrets.token_urlsafe(12)}"


def _equal(given: str, right: str) -> bool:
    return secrets.compare_digest(given.encode(), right.encode())
