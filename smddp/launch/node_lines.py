"""Lines between the agents of a job: they tell which failure ends it, and that a node was lost.

A line is a TCP connection of each node's agent to the first node's. That it breaks, without a word before, says that
the agent or its host has ended. No node has to prove that it lives: the kernel answers for one that is merely slow, and
a rank that is stopped in a debugger is no agent. A host that is gone answers nothing, and is missed after 20 seconds.

Where several nodes fail, the first node settles which failure was the first, and tells all.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

logger = logging.getLogger(__name__)

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFailure:
    """The failure that ends the job."""

    code: int
    """The exit code of the job."""
    report: str
    """The reason: who failed, and how."""


class NodeLines:
    """One node's lines: the first node's to all others, and every other's to the first.

    Args:
        host: This host's name.
        lost_first: Called, in a thread, on any node but the first if that was lost.
        failed: Called, in a thread, once there is a failure of another node's that ends the job.
        stopped: Called, in a thread, if a stop has ended another node before its ranks began.
    """

    def __init__(
        self,
        *,
        host: str,
        lost_first: Callable[[], None],
        failed: Callable[[], None],
        stopped: Callable[[], object],
    ) -> None:
        self._host = host
        self._lost_first = lost_first
        self._failed = failed
        self._stopped = stopped
        self._lock = threading.Lock()
        self._failure: JobFailure | None = None
        self._settled = threading.Event()
        self._first_left = threading.Event()
        self._lines: dict[int, socket.socket] = {}
        self._connected = threading.Semaphore(0)
        self._listener: socket.socket | None = None

    @property
    def failure(self) -> JobFailure | None:
        """The failure that ends the job, once there is one."""
        return self._failure

    def serve(self, address: str) -> int:
        """Let the other nodes connect; the first node's part.

        Args:
            address: The first node's, as the others know it.

        Returns:
            The port.
        """
        if address.startswith("127."):
            self._listener = socket.create_server((address, 0))
        elif socket.has_dualstack_ipv6():
            self._listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._listener = socket.create_server(("", 0))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return int(self._listener.getsockname()[1])

    def await_nodes(self, nodes: int, seconds: float) -> bool:
        """Return whether all other nodes have connected before the time is over; the first node's part."""
        return all(self._connected.acquire(timeout=seconds) for _ in range(nodes - 1))

    def connect(self, node: int, address: str, port: int, seconds: float) -> None:
        """Connect to the first node; every other node's part.

        Raises:
            OSError: It does not answer.
        """
        line = socket.create_connection((address, port), timeout=seconds)
        line.settimeout(None)
        _keep_alive(line)
        self._lines[0] = line
        _send(line, {"node": node, "host": self._host})
        threading.Thread(target=self._listen, args=(line,), daemon=True).start()

    def settle(self, failure: JobFailure) -> JobFailure:
        """Tell a failure that ends the job; returns the first one that was told."""
        if self._listener is not None or not self._lines:
            return self._decide(failure)
        _send(self._lines[0], asdict(failure))
        self._settled.wait(_SETTLE_SECONDS)
        return self._failure or failure

    def part(self, *, stopped: bool = False) -> None:
        """Say that this node needs nothing more of the others: from now on its end is no loss.

        Args:
            stopped: A stop ends it before its ranks have begun: the others stop, too.
        """
        self._tell_all({"parted": True, "stopped": stopped})

    def first_has_left(self, seconds: float = 0.0) -> bool:
        """Return whether the first node has parted and ended, and its store with it; wait so many seconds for that."""
        return self._first_left.wait(seconds)

    def await_others(self, seconds: float) -> None:
        """Return once all other agents have ended, or after so long: the first node's store is there for them."""
        deadline = time.monotonic() + seconds
        while self._listener is not None and self._lines and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _decide(self, failure: JobFailure) -> JobFailure:
        with self._lock:
            if self._failure is None:
                self._failure = failure
                self._tell_all(asdict(failure))
            return self._failure

    def _tell_all(self, message: dict[str, Any]) -> None:
        for line in list(self._lines.values()):
            _send(line, message)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            line, _ = listener.accept()
            _keep_alive(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        """Hear one other node until its end; the first node's part."""
        parted = False
        heard = _receive(line)
        hello = next(heard, None)
        if hello is None or "node" not in hello:
            line.close()  # nobody of ours
            return
        with self._lock:
            self._lines[hello["node"]] = line
        self._connected.release()
        for said in heard:
            parted = parted or "parted" in said
            if said.get("stopped"):
                self._tell_all({"stopped": True})
                self._stopped()
            if "report" in said:
                self._decide(JobFailure(**said))
                self._tell_failed()
        with self._lock:
            del self._lines[hello["node"]]
        if not parted:
            who = f"Node {hello['node']}, {hello['host']},"
            self._decide(JobFailure(code=1, report=f"{who} was lost: its agent was killed, or its host has ended."))
            self._tell_failed()

    def _listen(self, line: socket.socket) -> None:
        """Hear the first node until its end; every other node's part."""
        parted = False
        for said in _receive(line):
            parted = parted or "parted" in said
            if said.get("stopped"):
                self._stopped()
            if "report" in said:
                self._failure = JobFailure(**said)
                self._settled.set()
                self._tell_failed()
        if parted:
            self._first_left.set()
        else:
            self._lost_first()

    def _tell_failed(self) -> None:
        """Call the caller in a thread of its own: it may wait until this line has ended."""
        threading.Thread(target=self._failed, daemon=True).start()


def _keep_alive(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        line.setsockopt(socket.IPPROTO_TCP, option, value)
    # Keepalive is silent while something sent waits for an acknowledgement.
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)


def _send(line: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # who listens there hears of the end
        line.sendall(json.dumps(message).encode() + b"\n")


def _receive(line: socket.socket) -> Any:
    """Return the other end's messages, until it has ended."""
    with suppress(OSError, ValueError), line.makefile("rb") as file:
        for text in file:
            yield json.loads(text)
