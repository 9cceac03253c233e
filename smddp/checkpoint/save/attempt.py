"""One attempt to save: the values that go from the training thread to the commit, and the writing of a rank's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import SupportsFloat

import xxhash

from smddp.checkpoint.format.manifest import LARGEST_STEP, FileDigests
from smddp.checkpoint.save.snapshot import Snapshot
from smddp.checkpoint.save.staging import StagedFile
from smddp.checkpoint.stores.store import Store


@dataclass(kw_only=True, slots=True, frozen=True)
class Moment:
    """A moment of training between two steps, as its checkpoint records it.

    Making one raises ValueError if a number is out of range.
    """

    step: int
    """Optimizer steps taken."""
    epoch: int = 0
    """The current epoch."""
    position: int | None = None
    """Samples of the epoch consumed so far; None if unknown."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.step <= LARGEST_STEP:
            raise ValueError(f"step is {self.step}: give a whole number from 0 to 10**12 - 1")
        for name, number in ("epoch", self.epoch), ("position", self.position):
            if number is not None and number < 0:
                raise ValueError(f"{name} is {number}: give a whole number of 0 or more")

    @property
    def boundary(self) -> tuple[int, int]:
        """Step and epoch, which tell whether a moment is saved. A store knows the step only."""
        return self.step, self.epoch


@dataclass(kw_only=True, slots=True, frozen=True)
class SaveRequest:
    """The state to save, and its moment. Training does not change it."""

    run: str
    """The run's id."""
    number: int
    """The number of this save in the run, from 1; the same on all ranks."""
    moment: Moment
    snapshot: Snapshot | None
    """This rank's copy of the state; None if it failed."""
    failure: Exception | None
    """The reason why this rank can't save, such as a state that can't be copied; or None."""
    started: float
    """When the copy began, by `time.perf_counter`."""
    stall_seconds: float
    """How long the copy took."""
    waited_seconds: float
    """How long training waited for the previous save before that."""

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.moment.step

    @property
    def directory(self) -> str:
        """The name of the attempt's directory, beside the manifest."""
        return f"{self.run}-{self.number:04}"


@dataclass(kw_only=True, slots=True, frozen=True)
class SaveReport:
    """The durations and the size of a save."""

    step: int
    stall_seconds: float
    """How long the copy of the state stalled training, on this rank's GPU or CPU."""
    waited_seconds: float
    """How long training waited for the previous save before that."""
    durable_seconds: float
    """Time from the start of the copy until the checkpoint was durable."""
    size: int
    """Bytes of the checkpoint, over all ranks."""


@dataclass(kw_only=True, slots=True, frozen=True)
class WrittenFile:
    """The size and the digests of a written file of tensors."""

    size: int
    """Bytes."""
    digests: FileDigests


def write(store: Store, step: int, directory: str, files: Sequence[StagedFile]) -> dict[str, WrittenFile]:
    """Write files to a save attempt's directory and flush their bytes; return their digests by file name.

    The memory of the files must not change until this returns.
    """
    # Hashing and writing both release the GIL. One thread does both in turn: hashing takes a tenth of the time of
    # writing, and a second thread would take that time from training when all cores are busy.
    written: dict[str, WrittenFile] = {}
    for file in files:
        digests = _hash(file)
        store.write(step, directory, file.name, [file.content])
        written[file.name] = WrittenFile(size=file.layout.size, digests=digests)
    return written


def _hash(file: StagedFile) -> FileDigests:
    return FileDigests(
        header=xxhash.xxh3_128_hexdigest(file.layout.header),
        tensors={
            entry.name: xxhash.xxh3_128_hexdigest(file.content[entry.start : entry.start + entry.size])
            for entry in file.layout.entries
        },
    )


def as_numbers(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """Return each metric as a number: an int stays an int, and anything else becomes a float.

    Raise ValueError with the metric's name if its value is not a number.
    """
    return {str(name): _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return value if type(value) is int else float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        found = str(value)[:80]
        raise ValueError(f"the metric {name!r} is {found!r}: give a number, or a tensor of one") from error
