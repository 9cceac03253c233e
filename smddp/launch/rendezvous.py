"""The rendezvous of all nodes' agents, again for each round of the ranks; nodes keep their numbers.

torchrun's own rendezvous either happens once ("static") or numbers the nodes in random order ("c10d"); here rank 0
stays on the first host. The agent decides what ends a round, and how many rounds there may be.

1. The first node's agent serves a store, which outlives the rounds.
2. Each round has its own key prefix in the store, so nothing of an earlier round is ever read.
3. A node that joins a round sets ``begun``, which ends the round before on all nodes, and its own arrival key.
4. The round begins once every node's arrival key is set, or fails JOIN_SECONDS after this node connected to the first
   one (REJOIN_SECONDS in later rounds).
5. In the first round, each node then opens its line: a connection to the first node.
6. The ranks of the first round meet in this store. The first node serves a new store for each later round: in the old
   one, a script's process group would find the addresses of ended ranks.
"""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext, suppress
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from smddp.display_text import counted
from smddp.distributed.first_failure import publish
from smddp.distributed.meeting import EqualCount, listed, waiting
from smddp.distributed.store import open_store, serve_store
from smddp.errors import DistributedError
from smddp.launch.host_name import host_name
from smddp.launch.node_connections import NodeLines
from smddp.process.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

JOIN_SECONDS = 900.0
"""Seconds that a node waits for the others in the first round: torchrun's own default."""

REJOIN_SECONDS = 30.0
"""The same in later rounds, in which every node only has to end its ranks."""

_LOOK_SECONDS = 0.1
_PART_SECONDS = 5.0
_LEAVE_SECONDS = 10.0
"""Time in which the first node's connection tells whether it left or was lost, once its store is gone."""


class NodeRendezvous(RendezvousHandler):
    """One node's view of the rendezvous at the first node's store; opens ``lines`` in the first round.

    ``job_id`` tells the nodes of this job from those of another job with the same address, unless it is "".
    """

    def __init__(
        self, *, node: int, nodes: int, max_restarts: int, address: str, port: int, job_id: str, lines: NodeLines
    ) -> None:
        self.number = -1
        """The current round, from 0; -1 before the first."""
        self.lines = lines
        self._node = node
        self._nodes = nodes
        self._address = address
        self._port = port
        self._job_id = job_id
        self._count = EqualCount(
            member="node",
            who=f"node {node} on {host_name()}",
            found=f"{counted(nodes, 'node')} and {counted(max_restarts, 'restart')}",
            remedy="All nodes need the same numbers: give smddp run the same --nodes and --max-restarts on each.",
        )
        self._served: Store | None = None
        self._of_ranks: Store | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round, and wait for the other nodes.

        Raise RendezvousConnectionError if the first node is lost, RendezvousTimeoutError if a node does not come in
        time, RendezvousClosedError if a node has left for good, DistributedError if the nodes count differently.
        """
        seconds = REJOIN_SECONDS if self._served is not None else JOIN_SECONDS
        if self._served is None:
            self._served = self._connect()
        try:
            store = self._store_of(self.number + 1)
            self._await_nodes(store, seconds)
            if self.number < 0 and self._nodes > 1:
                self._open_lines(store)
            port = self._port if self.number < 0 else self._open_store_of_ranks(store)
        except DistributedError:
            raise
        except RuntimeError as error:
            raise self.lost() from error
        self.number += 1
        return RendezvousInfo(store, self._node, self._nodes, RendezvousStoreInfo(self._address, port))

    def next_has_begun(self) -> bool:
        """Return whether another node has ended this round; False once the first node has left.

        Raise RendezvousConnectionError if the first node is lost.
        """
        if self.lines.first_has_left():
            return False
        try:
            return bool(self._store_of(self.number + 1).check(["begun"]))
        except RuntimeError as error:
            if self.lines.first_has_left(_LEAVE_SECONDS):  # the line may report it shortly after the store has gone
                return False
            raise self.lost() from error

    def num_nodes_waiting(self) -> int:
        """Return 0: torchrun would admit waiting nodes without counting a restart."""
        return 0

    def settle_cause(self, cause: str) -> str:
        """Report why this node ends the round, and return the first reason that any node reported.

        Raise RendezvousConnectionError if the first node is lost.
        """
        try:
            return bytes(self._store_of(self.number).compare_set("cause", "", cause)).decode()
        except RuntimeError as error:
            raise self.lost() from error

    def tell_ranks(self, report: str) -> str:
        """Publish a failure to the ranks of all nodes; return the first report, which may be a rank's own.

        If the first node and its store are gone, log that the ranks can't be told.
        """
        store = self._of_ranks or self._served
        assert store is not None
        try:
            return publish(store, report)
        except RuntimeError as error:
            logger.warning("The ranks can't be told of the failure, the store is gone: %s", error)
            return report

    def count_keys(self) -> int | None:
        """Return the number of keys in the store in which the ranks meet; None if other nodes add keys to it, too."""
        return self._served.num_keys() if self._served is not None and self._nodes == 1 and self.number == 0 else None

    def set_closed(self) -> None:
        """Announce that this node joins no further round, so that other nodes do not wait."""
        with suppress(RuntimeError):  # the first node is gone, so no node waits
            self._store_of(0).set("closed", "")

    def is_closed(self) -> bool:
        """Return whether any node joins no further round."""
        return bool(self._store_of(0).check(["closed"]))

    def part(self) -> None:
        """Leave after a success; the first node leaves last, at most 5 s later: others may still read its store."""
        gone = [f"gone/{node}" for node in range(self._nodes)]
        store = self._store_of(self.number)
        deadline = time.monotonic() + _PART_SECONDS
        with suppress(RuntimeError):  # the first node did not wait any longer
            store.set(gone[self._node], "")
            while self._node == 0 and not store.check(gone) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS / 10)

    def get_backend(self) -> str:
        """Return the name of this rendezvous."""
        return "smddp"

    def get_run_id(self) -> str:
        """Return the same id for every job, because a store serves one job."""
        return "smddp"

    @property
    def use_agent_store(self) -> bool:
        """True: the ranks meet in this store, too."""
        return True

    def shutdown(self) -> bool:
        """Do nothing: the ranks of other nodes may still need the store."""
        return True

    def _connect(self) -> Store:
        return open_store(
            self._address,
            self._port,
            timedelta(seconds=JOIN_SECONDS),
            who=f"node {self._node} of {self._nodes}",
            is_server=self._node == 0,
            is_on_one_host=self._nodes == 1,
            job=self._job_id,
            count=self._count,
        )

    def _await_nodes(self, store: Store, seconds: float) -> None:
        """Arrive in a round, and wait for the other nodes. The first node logs which ones it waits for."""
        arrivals = [f"node/{node}" for node in range(self._nodes)]
        deadline = time.monotonic() + seconds
        store.set("begun", "")
        store.set(arrivals[self._node], "")
        missing = list(range(self._nodes))
        where, most = f"{self._address}:{self._port}", timedelta(seconds=seconds)
        told = Heartbeat(lambda: waiting("node", missing, self._nodes, where, most))
        with told if self._node == 0 else nullcontext():
            while missing := [node for node in missing if not store.check([arrivals[node]])]:
                if self.lines.failure is not None:
                    raise RendezvousConnectionError(self.lines.failure.report)
                if self.is_closed():
                    raise RendezvousClosedError("another node has ended already")
                if self._node == 0 and self.number < 0:  # later a node that comes late must not end the job
                    assert self._served is not None
                    self._count.check_others(self._served)
                if time.monotonic() > deadline:
                    raise RendezvousTimeoutError(f"{listed('node', missing)} did not come within {seconds:.0f} s")
                time.sleep(_LOOK_SECONDS)

    def _open_lines(self, store: Store) -> None:
        if self._node == 0:
            store.set("lines", str(self.lines.serve(self._address)))
            if not self.lines.await_nodes(self._nodes, REJOIN_SECONDS):
                raise RendezvousTimeoutError(f"not every node has connected within {REJOIN_SECONDS:.0f} s")
            return
        port = int(store.get("lines"))
        try:
            self.lines.connect(self._node, self._address, port, REJOIN_SECONDS)
        except OSError as error:
            raise RendezvousConnectionError(
                f"the first node does not answer at {self._address}:{port} ({error}): the hosts of a job must reach "
                "one another at any port"
            ) from error

    def _open_store_of_ranks(self, store: Store) -> int:
        """Connect to the store in which the ranks of a later round meet, and return its port."""
        timeout = timedelta(seconds=JOIN_SECONDS)
        if self._node == 0:
            self._of_ranks = serve_store(self._address, 0, timeout, is_on_one_host=self._nodes == 1)
            store.set("port", str(self._of_ranks.port))
        else:
            port = int(store.get("port"))
            self._of_ranks = TCPStore(self._address, port, is_master=False, wait_for_workers=False, timeout=timeout)
        return int(self._of_ranks.port)

    def _store_of(self, number: int) -> Store:
        assert self._served is not None
        return PrefixStore(f"agents/{number}", self._served)

    def lost(self) -> RendezvousConnectionError:
        """Return the error for a lost first node."""
        return RendezvousConnectionError(
            f"the first node, {self._address}:{self._port}, was lost: its agent or its host has ended, or the network "
            "to it is broken"
        )
