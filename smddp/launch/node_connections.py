"""Connections between the agents of a job: they report the failure that ends the job, and a lost node.

A line is a TCP connection from each node's agent to the first node's. A line that breaks without a "parted" message
means that the agent or its host has ended. There are no heartbeats: the kernel answers for a slow process, and ranks
stopped in a debugger do not count. A lost host does not answer, and is noticed after 20 seconds.

If several nodes fail, the first node decides which failure was first, and sends it to all.
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
_SETTLE_SECONDS = 10.0  # a first node without a core for seconds must not let two failures be reported
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFailure:
    """The failure that ends the job."""

    code: int
    """The exit code of the job."""
    report: str
    """The reason: the failed rank or node, and how it failed."""


class NodeLines:
    """One node's connections: from the first node to all others, or from another node to the first.

    All callbacks run in threads of their own. ``lost_first``: the first node was lost (other nodes only). ``failed``:
    another node's failure ends the job. ``stopped``: a stop ended another node before its ranks began.
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
        # On the first node, guards the first write of `_failure` and the entries of `_lines`. `_decide` sends under it,
        # so that all nodes get the same failure; TCP_USER_TIMEOUT bounds each send to 20 s. No other lock is taken
        # under it. Elsewhere `_failure` has one writer, the thread of `_listen`.
        self._lock = threading.Lock()
        self._failure: JobFailure | None = None
        self._settled = threading.Event()
        self._first_ended = threading.Event()
        self._first_parted = False
        self._lines: dict[int, socket.socket] = {}
        self._connected = threading.Semaphore(0)
        self._listener: socket.socket | None = None

    @property
    def failure(self) -> JobFailure | None:
        """The failure that ends the job; None until one is known."""
        return self._failure

    def serve(self, address: str) -> int:
        """Let the other nodes connect, and return the port. Only on the first node, whose address the others use."""
        if address.startswith("127."):
            self._listener = socket.create_server((address, 0))
        elif socket.has_dualstack_ipv6():
            self._listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._listener = socket.create_server(("", 0))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return int(self._listener.getsockname()[1])

    def await_nodes(self, nodes: int, seconds: float) -> bool:
        """Wait for all other nodes, at most ``seconds`` in all; return whether they connected. Only on node 0."""
        deadline = time.monotonic() + seconds
        return all(self._connected.acquire(timeout=max(0.0, deadline - time.monotonic())) for _ in range(nodes - 1))

    def connect(self, node: int, address: str, port: int, seconds: float) -> None:
        """Connect to the first node; raise OSError if it does not answer. Only on the other nodes."""
        line = socket.create_connection((address, port), timeout=seconds)
        line.settimeout(None)
        _keep_alive(line)
        self._lines[0] = line
        _send(line, {"node": node, "host": self._host})
        threading.Thread(target=self._listen, args=(line,), daemon=True).start()

    def settle(self, failure: JobFailure) -> JobFailure:
        """Report a failure that ends the job; return the first one of any node, after `_SETTLE_SECONDS` at most."""
        if self._listener is not None or not self._lines:
            return self._decide(failure)
        _send(self._lines[0], asdict(failure))
        self._settled.wait(_SETTLE_SECONDS)
        return self._failure or failure

    def part(self, *, stopped: bool = False) -> None:
        """Announce that this node will end without a failure.

        With ``stopped``, a stop ends this node before its ranks began, and the other nodes must stop, too.
        """
        self._tell_all({"parted": True, "stopped": stopped})

    def first_has_left(self, seconds: float = 0.0) -> bool:
        """Return whether the first node, with its store, ended after it parted; wait at most ``seconds``."""
        return self._first_ended.wait(seconds) and self._first_parted

    def await_others(self, seconds: float) -> None:
        """Wait until all other agents have ended, at most ``seconds``: they still need the first node's store."""
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
        """Read another node's messages until it disconnects. Only on node 0."""
        parted = False
        heard = _receive(line)
        hello = next(heard, None)
        if hello is None or "node" not in hello:
            line.close()  # not one of our agents
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
            why = "its agent was killed, or its host has ended, or the network to it is broken"
            self._decide(JobFailure(code=1, report=f"{who} was lost: {why}."))
            self._tell_failed()

    def _listen(self, line: socket.socket) -> None:
        """Read the first node's messages until its end. Only on the other nodes."""
        parted = False
        for said in _receive(line):
            parted = parted or "parted" in said
            if said.get("stopped"):
                self._stopped()
            if "report" in said:
                self._failure = JobFailure(**said)
                self._settled.set()
                self._tell_failed()
        self._first_parted = parted
        self._first_ended.set()  # after `_first_parted`, which its waiter reads
        self._settled.set()  # a lost first node decides nothing
        if not parted:
            self._lost_first()

    def _tell_failed(self) -> None:
        """Call `failed` in a new thread, because it may wait until this line has ended."""
        threading.Thread(target=self._failed, daemon=True).start()


def _keep_alive(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        line.setsockopt(socket.IPPROTO_TCP, option, value)
    # Keepalive probes pause while sent data waits for an acknowledgement, so bound that as well. Milliseconds.
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)


def _send(line: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the reading thread of this line notices its end
        line.sendall(json.dumps(message).encode() + b"\n")


def _receive(line: socket.socket) -> Any:
    """Yield the other end's messages until it ends."""
    with suppress(OSError, ValueError), line.makefile("rb") as file:
        for text in file:
            yield json.loads(text)
