"""What the ranks' background threads tell each other about a save, through the job's key-value store.

Collectives are training's: a thread that used them meanwhile would get between its calls. So each rank puts its result
under a key, rank 0 collects them and puts the outcome under another, and everybody looks from time to time. Nobody
waits without a bound, and what was told is removed again. One process alone tells nobody, and has no store.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch.distributed.distributed_c10d import Store

from smddp.checkpoint.format.digests import FileDigests
from smddp.checkpoint.save.writer import WrittenFile
from smddp.checkpoint.stores.store import StoreError
from smddp.errors import CheckpointError

WAIT_SECONDS = 1800.0
"""How long a rank that has written its own files waits for the others."""

FAREWELL_SECONDS = 10.0
"""How long rank 0, which may serve the store, waits until the others have heard how it went."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.2


@dataclass(kw_only=True, slots=True, frozen=True)
class Failure:
    """Why a save failed, as other ranks learn of it."""

    rank: int
    """Where."""
    text: str
    """The error."""
    environmental: bool
    """Whether the disk, the network or the like is the cause: the next save may succeed."""

    @classmethod
    def of(cls, error: Exception, *, rank: int) -> Failure:
        """Describe an error."""
        text = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        return cls(rank=rank, text=text, environmental=isinstance(error, (OSError, StoreError)))


@dataclass(kw_only=True, slots=True, frozen=True)
class RankResult:
    """How one rank did its part of a save."""

    files: Mapping[str, WrittenFile] = field(default_factory=dict)
    """What it wrote, durably, by the file's name."""
    fingerprint: str = ""
    """A digest of the names and sizes of the replicated state's tensors; empty on a rank that wrote nothing of it."""
    skeleton: Any = None
    """Its own state without the tensors, as `smddp.checkpoint.format.state_tree` has it."""
    tensors: bytes = b""
    """The tensors of its own state, a safetensors file."""
    failure: Failure | None = None
    """What went wrong; then there is nothing else."""

    def to_json(self) -> str:
        """Return what travels."""
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
        """Read what travelled, from a rank of this very job."""
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
    """How a save ended, for all ranks."""

    size: int = 0
    """Bytes of the checkpoint."""
    failure: Failure | None = None
    """What went wrong first; None if the checkpoint is durable."""

    def to_json(self) -> str:
        """Return what travels."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> SaveResult:
        """Read what travelled."""
        content = json.loads(data)
        return cls(size=content["size"], failure=None if content["failure"] is None else Failure(**content["failure"]))


class RankResults:
    """The results of the ranks and the outcome of each save of a run, as one rank takes part in them.

    Every method but the constructor is called in a background thread, and raises CheckpointError when contact is lost,
    when it took too long, or when it shall give up.
    """

    def __init__(
        self, store: Store | None, *, rank: int, world_size: int, run: str, seconds: float = WAIT_SECONDS
    ) -> None:
        """Take part.

        Args:
            store: What all ranks see, a connection of this rank's own; None for one process alone.
            rank: This process.
            world_size: How many there are.
            run: The run's id; keys begin with it.
            seconds: How long to wait for others.
        """
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._run = run
        self._seconds = seconds

    def collect(self, save: int, own: RankResult, cancelled: threading.Event) -> list[RankResult]:
        """Give all results of a save, in the order of the ranks; rank 0's part.

        Args:
            save: The save's number.
            own: Rank 0's.
            cancelled: Set when it shall give up.
        """
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
        """Tell the others how the save ended, and remove what was told about it once they know; rank 0's part."""
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
        """Tell rank 0 how it went here, and give the outcome of the whole; every other rank's part."""
        assert self._store is not None
        store, save_result = self._store, self._key(save, "save_result")
        with _in_contact():
            store.set(self._key(save, f"result/{self._rank}"), result.to_json())
            if not _poll(lambda: store.check([save_result]), 2 * self._seconds, cancelled):  # rank 0 waits, then writes
                raise CheckpointError(f"rank 0 did not say how it went within {2 * self._seconds:g} s")
            told = SaveResult.from_json(store.get(save_result))
            store.add(self._key(save, "heard"), 1)
        return told

    def _key(self, save: int, name: str) -> str:
        return f"checkpoint/{self._run}/{save}/{name}"


def _poll(is_done: Callable[[], bool], seconds: float, cancelled: threading.Event) -> bool:
    """Look until it is done; whether it is before the time is over.

    Raises:
        CheckpointError: It shall give up.
    """
    deadline = time.monotonic() + seconds
    pause = _SHORTEST_PAUSE
    while not cancelled.is_set():
        if is_done():
            return True
        if time.monotonic() >= deadline:
            return False
        cancelled.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    raise CheckpointError("given up, because the process ends")


@contextlib.contextmanager
def _in_contact() -> Iterator[None]:
    """Say what it means when the store fails: whoever serves it, rank 0 or its host's torchrun, has ended."""
    try:
        yield
    except CheckpointError:
        raise
    except RuntimeError as error:
        raise CheckpointError(f"lost contact with the other ranks: {error}") from error
