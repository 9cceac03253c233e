"""The ranks that save together: which of them write, and what their background threads tell each other.

Collectives would interleave with the training's, so the threads poll keys in the job's key-value store instead.
Notes on one save:
  1. Every other rank sets ``result/<rank>``. Rank 0 polls for all of them, `_WAIT_SECONDS` at most.
  2. Rank 0 commits or discards, and sets ``save_result``. The other ranks poll for it, twice `_WAIT_SECONDS` at most:
     once for rank 0's own wait, once for its writing.
  3. Each of them reads it and then counts itself in ``heard``. Rank 0 deletes the keys once all are counted, so that no
     rank misses them. After `FAREWELL_SECONDS` it leaves them behind; no later save uses these keys.
A single process has no store and sends nothing.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Literal

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from smddp.checkpoint.format.manifest import FileDigests
from smddp.checkpoint.run_state import Stateful, is_in_pieces, saving_ranks_of
from smddp.checkpoint.save.attempt import WrittenFile
from smddp.checkpoint.stores.store import StoreError
from smddp.cluster import Cluster
from smddp.distributed import PeerFailedError, Ranks, current_membership
from smddp.distributed.ranks import error_text
from smddp.distributed.store import connect, serve_store
from smddp.errors import CheckpointError, ClusterError

_WAIT_SECONDS = 1800.0
"""How long rank 0, once its own files are written, waits for the other ranks. They wait twice as long for rank 0."""

FAREWELL_SECONDS = 10.0
"""How long rank 0, which may serve the store, waits until the other ranks have read the outcome."""

_SHORTEST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.005, 0.2, 1.2
"""Seconds, and the factor from one pause to the next: a pause is about a sixth of the wait so far."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Failure:
    """The reason why a save failed, for all ranks."""

    rank: int
    """The rank that failed."""
    text: str
    """The message of the error."""
    environmental: bool
    """Whether the disk, the network or the like is the cause, so that the next save may succeed."""

    @classmethod
    def of(cls, error: Exception, *, rank: int) -> Failure:
        """Return the description of an error."""
        text = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        return cls(rank=rank, text=text, environmental=isinstance(error, (OSError, StoreError)))


@dataclass(kw_only=True, slots=True, frozen=True)
class RankResult:
    """The files and per-rank state that one rank adds to a save, or its failure."""

    files: Mapping[str, WrittenFile] = field(default_factory=dict)
    """The files that the rank wrote, their bytes flushed, by name."""
    fingerprint: str = ""
    """A digest of the names and sizes of the replicated tensors. Empty on a rank that is no writer."""
    skeleton: Any = None
    """The per-rank state without its tensors, in the form of `smddp.checkpoint.format.state_tree`."""
    tensors: bytes = b""
    """The tensors of the per-rank state, as a safetensors file."""
    failure: Failure | None = None
    """The failure, or None. With a failure all other fields are empty."""

    def to_json(self) -> str:
        """Return the message for rank 0."""
        content = {
            "files": {
                name: [file.size, file.digests.header, dict(file.digests.tensors)] for name, file in self.files.items()
            },
            "fingerprint": self.fingerprint,
            "skeleton": self.skeleton,
            "tensors": base64.b64encode(self.tensors).decode(),
            "failure": None if self.failure is None else asdict(self.failure),
        }
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: bytes) -> RankResult:
        """Read the message of another rank of this job, which is trusted."""
        content = json.loads(data)
        return cls(
            files={
                name: WrittenFile(size=size, digests=FileDigests(header=header, tensors=tensors))
                for name, (size, header, tensors) in content["files"].items()
            },
            fingerprint=content["fingerprint"],
            skeleton=content["skeleton"],
            tensors=base64.b64decode(content["tensors"]),
            failure=None if content["failure"] is None else Failure(**content["failure"]),
        )


@dataclass(kw_only=True, slots=True, frozen=True)
class SaveResult:
    """The outcome of a save, for all ranks."""

    size: int = 0
    """Bytes of the checkpoint; 0 if it failed."""
    failure: Failure | None = None
    """The first failure; None if the checkpoint is durable."""

    def to_json(self) -> str:
        """Return the message for the other ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> SaveResult:
        """Read the message of rank 0."""
        content = json.loads(data)
        return cls(size=content["size"], failure=None if content["failure"] is None else Failure(**content["failure"]))


class ResultExchange:
    """Exchanges the results of the ranks and the outcome of each save, on one rank, in its background thread.

    Each method raises CheckpointError on lost contact, on a timeout, or once `cancelled` is set.
    """

    def __init__(
        self, store: Store | None, *, rank: int, world_size: int, run: str, seconds: float = _WAIT_SECONDS
    ) -> None:
        """Send nothing yet. `store` is a connection that only this rank uses, or None for a single process."""
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._run = run
        self._seconds = seconds

    def collect(self, save: int, own: RankResult, cancelled: threading.Event) -> list[RankResult]:
        """Return all results of a save, in the order of the ranks. Called by rank 0 only."""
        if self._store is None:
            return [own]
        store, keys = self._store, [self._key(save, f"result/{rank}") for rank in range(1, self._world_size)]
        with _in_contact():
            if not _poll(lambda: store.check(keys), self._seconds, cancelled):
                missing = [str(rank) for rank, key in enumerate(keys, start=1) if not store.check([key])]
                raise CheckpointError(
                    f"rank {', '.join(missing)} did not report within {self._seconds:g} s; is its disk or its network "
                    "slow, or did it end?"
                )
            return [own, *(RankResult.from_json(store.get(key)) for key in keys)]

    def announce(self, save: int, save_result: SaveResult, cancelled: threading.Event) -> None:
        """Send the outcome to the other ranks, and delete the keys of the save. Called by rank 0 only."""
        if self._store is None:
            return
        store, heard = self._store, self._key(save, "heard")
        with _in_contact():
            store.set(self._key(save, "save_result"), save_result.to_json())
            store.add(heard, 0)
            if _poll(lambda: store.add(heard, 0) == self._world_size - 1, FAREWELL_SECONDS, cancelled):
                for name in ["save_result", "heard", *(f"result/{rank}" for rank in range(1, self._world_size))]:
                    store.delete_key(self._key(save, name))

    def send(self, save: int, result: RankResult, cancelled: threading.Event) -> SaveResult:
        """Send this rank's result to rank 0, and return the outcome of the save. Called by all other ranks."""
        assert self._store is not None
        store, save_result = self._store, self._key(save, "save_result")
        with _in_contact():
            store.set(self._key(save, f"result/{self._rank}"), result.to_json())
            if not _poll(lambda: store.check([save_result]), 2 * self._seconds, cancelled):  # see note 2
                raise CheckpointError(f"rank 0 did not say how it went within {2 * self._seconds:g} s")
            told = SaveResult.from_json(store.get(save_result))
            store.add(self._key(save, "heard"), 1)
        return told

    def _key(self, save: int, name: str) -> str:
        return f"checkpoint/{self._run}/{save}/{name}"


def _poll(is_done: Callable[[], bool], seconds: float, cancelled: threading.Event) -> bool:
    """Poll, and return whether `is_done` within `seconds`. Raise CheckpointError once `cancelled` is set."""
    deadline = time.monotonic() + seconds
    pause = _SHORTEST_PAUSE
    while not cancelled.is_set():
        if is_done():
            return True
        if time.monotonic() >= deadline:
            return False
        cancelled.wait(pause)
        pause = min(_GROWTH * pause, _LONGEST_PAUSE)
    raise CheckpointError("given up, because the process ends")


@contextlib.contextmanager
def _in_contact() -> Iterator[None]:
    """Turn an error of the store into a CheckpointError: the process that serves it has ended."""
    try:
        yield
    except CheckpointError:
        raise
    except RuntimeError as error:
        raise CheckpointError(f"lost contact with the other ranks: {error}") from error


_CONNECT = timedelta(seconds=60)


@dataclass(kw_only=True, slots=True, frozen=True)
class SaveGroup:
    """The facts that all ranks agree on before the first save or load of a run."""

    ranks: Ranks
    run: str
    """The id of this run, 12 hexadecimal digits. A resumed run has a new one."""
    writers: Sequence[int]
    """The ranks that write replicated state; rank 0 is the first."""
    results: ResultExchange

    @classmethod
    def gather(cls, ranks: Ranks, share: Literal["node", "all"]) -> SaveGroup:
        """Agree on a group; collective. Raise DistributedError or PeerFailedError if a rank cannot reach the store."""
        run = ranks.on_main(lambda: secrets.token_hex(6))
        if ranks.world_size == 1:
            return cls(ranks=ranks, run=run, writers=[0], results=ResultExchange(None, rank=0, world_size=1, run=run))
        cluster = _cluster(ranks)
        nodes: list[Any] = ranks.gather(lambda: None if cluster is None else cluster.node_rank)
        if cluster is None or None in nodes:  # the script made the process group without a cluster that smddp knows
            nodes = ranks.gather(socket.gethostname)
            store = _serve(ranks, hosts=nodes)
        else:
            store = _join(ranks, cluster)
        return cls(
            ranks=ranks,
            run=run,
            writers=[rank for rank, node in enumerate(nodes) if share == "all" or node == nodes[0]],
            results=ResultExchange(store, rank=ranks.rank, world_size=ranks.world_size, run=run),
        )

    def check_writers(self, state: Mapping[str, Stateful], *, share: str) -> None:
        """Raise CheckpointError unless each rank that has pieces of the state may write them."""
        world_size = Ranks.current().world_size  # with share="alone" the group has one rank
        if len(self.writers) == world_size:
            return
        if (name := next((name for name, part in state.items() if is_in_pieces(part)), None)) is not None:
            raise CheckpointError(
                f"each rank has pieces of {name!r}, and share={share!r} lets only {len(self.writers)} of "
                f'{world_size} ranks write: give the job a checkpoint_s3_uri, or share="all" and a location in S3 or '
                "on a file system that all nodes share"
            )


def check_alike(state: Mapping[str, Stateful], ranks: Ranks, *, save_frozen: bool) -> None:
    """Raise CheckpointError unless all ranks have the same save_frozen and the same meshes; collective."""
    meshes = zlib.crc32(repr(saving_ranks_of(state.values())).encode())
    if ranks.have_equal(save_frozen, meshes):
        return
    if not ranks.have_equal(save_frozen):
        raise CheckpointError("save_frozen is False on some ranks only: give all ranks the same")
    raise CheckpointError(
        "the ranks have the pieces of the state on different meshes: make one mesh of all ranks, by "
        "init_device_mesh, and give fully_shard and parallelize_module slices of it, such as mesh['data']"
    )


def _cluster(ranks: Ranks) -> Cluster | None:
    """Return the cluster that the ranks joined; None if this rank does not know it."""
    membership = current_membership()
    if membership is not None:
        return membership.cluster
    try:
        cluster = Cluster.detect()
    except ClusterError:
        return None
    return cluster if (cluster.rank, cluster.world_size) == (ranks.rank, ranks.world_size) else None


def _join(ranks: Ranks, cluster: Cluster) -> Store:
    """Open a new connection to the rendezvous store of the job, which rank 0 or torchrun on its host serves."""
    membership = current_membership()

    def open_store() -> Store:
        store = None if membership is None else membership.connect(_CONNECT)
        return store or connect(cluster, _CONNECT, os.environ, serve=False)

    return ranks.agree(open_store)


def _serve(ranks: Ranks, hosts: Sequence[str]) -> Store:
    """Start a store on rank 0, and connect every rank to it."""
    is_on_one_host = len(set(hosts)) == 1
    host = "127.0.0.1" if is_on_one_host else hosts[0]

    def serve() -> TCPStore | None:
        return serve_store(host, 0, _CONNECT, is_on_one_host=is_on_one_host) if ranks.is_main else None

    served = ranks.agree(serve)
    port = ranks.from_rank(0, 0 if served is None else served.port)
    return ranks.agree(lambda: served or TCPStore(host, port, timeout=_CONNECT))


@contextmanager
def same_error(ranks: Ranks) -> Iterator[None]:
    """Raise an error of one rank as the same CheckpointError on every rank."""
    try:
        yield
    except Exception as error:
        if ranks.world_size == 1 and isinstance(error, CheckpointError):
            raise
        rank, text = ranks.rank, error_text(error)
        if isinstance(error, PeerFailedError) and error.rank is not None:
            rank, text = error.rank, error.told
        raise CheckpointError(text if ranks.world_size == 1 else f"rank {rank}: {text}") from error
