"""Waits until all host names of a job resolve: a cluster's name service starts together with the cluster."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence

from smddp.errors import ClusterError

logger = logging.getLogger(__name__)

WAIT_SECONDS = 300.0
RETRY_SECONDS = 0.5


def await_names(hosts: Sequence[str], *, seconds: float = WAIT_SECONDS) -> None:
    """Wait until every host's name resolves; raise ClusterError after ``seconds``."""
    missing = list(hosts)
    resolved = threading.Event()

    def resolve() -> None:
        while missing:
            missing[:] = [host for host in missing if not _resolves(host)]
            if missing:
                time.sleep(RETRY_SECONDS)
        resolved.set()

    # One lookup can block in C for half a minute. It runs in a thread, so that a stop can interrupt the main thread.
    threading.Thread(target=resolve, daemon=True).start()
    if not resolved.wait(RETRY_SECONDS):
        logger.info("Waiting for the names of %s.", ", ".join(missing))
        if not resolved.wait(seconds):
            raise ClusterError(
                f"The names of {', '.join(missing)} did not resolve within {seconds:.0f} s: these hosts did not start, "
                "or no name service or /etc/hosts knows them. SM_STUDIO_LOCAL_MODE=true skips this check."
            )


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True
