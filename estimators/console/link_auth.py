"""Access to the console: only for a browser that was once opened with the terminal's link.

1. The link opens the console once, and gives the browser a cookie.
2. A cookie of 127.0.0.1 is sent to every port, also to another user's program. So the cookie is bound to a secret path.
3. The Host check defeats DNS rebinding; the Origin and Sec-Fetch-Site checks refuse requests of foreign pages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
