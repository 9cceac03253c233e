"""Whether a program listens at the address where the ranks meet, asked with plain connections before torch's."""

from __future__ import annotations

import socket
import threading
import time

_CONNECT_SECONDS = 1.0
_LEAST_PAUSE = 0.01
_MOST_PAUSE = 0.5


def await_listener(address: str, port: int, deadline: float, given_up: threading.Event) -> None:
    """Wait until a program accepts connections at this address; raise TimeoutError, with the reason, at the deadline.

    The address may have no host yet, as in Kubernetes.
    """
    pause = _LEAST_PAUSE
    while True:
        try:
            with socket.create_connection((address, port), timeout=_CONNECT_SECONDS) as connection:
                # Without a listener, a port of the range for clients may be connected to itself.
                if connection.getsockname() != connection.getpeername():
                    return
                why = "nobody listens there"
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
        if time.monotonic() > deadline or given_up.wait(pause):
            raise TimeoutError(why)
        pause = min(1.5 * pause, _MOST_PAUSE)


def is_silent(address: str, port: int) -> bool | None:
    """Return whether a program accepts a connection and keeps it without a word, as a store does, too.

    None if nobody accepted or refused it in time: the host may not be up, or a program's queue may be full.
    """
    try:
        connection = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
    except TimeoutError:
        return None
    except (OSError, UnicodeError):
        return False
    with connection:
        try:
            return connection.recv(1) != b""  # a proxy closes it until rank 0 listens
        except TimeoutError:
            return True
        except OSError:
            return False
