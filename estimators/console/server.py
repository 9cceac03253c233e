"""The web server of the pages, on 127.0.0.1, in its own thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType

import uvicorn

from estimators.console.link_auth import LinkAuth, new_root
from estimators.console.pages import Pages
from estimators.console.place import Place
from estimators.errors import EstimatorError

_HOST = "127.0.0.1"
_CONNECTIONS = 64


class Console:
    """Serves the pages inside a ``with`` block.

    Examples:
        >>> with Console(Place(name="here", session=session)) as console:
        ...     print(console.link)
    """

    def __init__(self, place: Place, *, port: int = 0, entered: Callable[[str], object] = lambda _: None) -> None:
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
        self._pages = Pages(place, root)
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
