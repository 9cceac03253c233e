"""The snapshot of a run on one rank: a copy in memory of the state that this rank writes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smddp.checkpoint.format.manifest import file_names
from smddp.checkpoint.format.state_tree import flatten, flatten_shards
from smddp.checkpoint.parts.modules import ModulePart
from smddp.checkpoint.run_state import RANKS, RNG, Gathering, Stateful, capture_random_state
from smddp.checkpoint.save.device_copies import DeviceCopies
from smddp.checkpoint.save.staging import StagedFile, Staging
from smddp.errors import CheckpointError

Tensors = Mapping[str, torch.Tensor]


@dataclass(kw_only=True, slots=True, frozen=True)
class Snapshot:
    """A copy of the state at one moment. Training does not change it."""

    skeletons: Mapping[str, Any]
    """The state that all ranks share, without its tensors, by part. Empty on a rank that is not among the writers."""
    sizes: Mapping[str, Mapping[str, int]]
    """Bytes of the replicated tensors and of all pieces, by part and name. Empty on a rank that is no writer."""
    files: Sequence[StagedFile]
    """The files of replicated tensors and of pieces that this rank writes."""
    own_skeleton: Any
    """The per-rank state without its tensors."""
    own_file: StagedFile
    """The tensors of the per-rank state, which rank 0 receives and writes. Each name begins with the rank."""


class Snapshotter:
    """Copies the state of a run into the same memory for each save. One snapshot is valid until the next."""

    def __init__(
        self, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], *, rank: int, writers: Sequence[int]
    ) -> None:
        """Copy nothing yet. `writers` are the ranks that write the replicated `state`, each a share.

        Each piece of a DTensor in it is written by one of the ranks that have it.
        """
        self._state = state
        self._per_rank = per_rank
        self._rank = rank
        self._writers = writers
        self._device_copies = DeviceCopies()
        self._staging, self._own_staging = Staging(self._device_copies), Staging(self._device_copies)

    def take(self) -> Snapshot:
        """Copy the state. Raise CheckpointError with the reason if it cannot be saved.

        Training may change the state once this returns. Copies from a GPU are complete once `await_copies` returns.
        """
        try:
            return self._take()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"could not take the state: {type(error).__name__}: {error}") from error

    def await_copies(self) -> float:
        """Wait for the GPU copies of the last snapshot. Return the seconds that they stalled a GPU beyond `take`."""
        return self._device_copies.wait()

    def preparation(self) -> Callable[[], None]:
        """Return a function that allocates the memory for the present state. Any thread may call it."""
        _, tensors, owners = self._flatten()
        files = {
            file: {name: tensor.detach() for name, tensor in each.items()}
            for file, each in self._files(tensors, _sizes(tensors), owners).items()
        }
        return lambda: self._staging.prepare(files)

    def _take(self) -> Snapshot:
        skeletons, tensors, owners = self._flatten()
        sizes = _sizes(tensors)
        own: dict[str, Any] = {RNG: capture_random_state()} | {
            name: part.state_dict() for name, part in self._per_rank.items()
        }
        own_skeleton, own_tensors = flatten(own, path="", name=str(self._rank))
        with self._device_copies.launching():
            files = self._staging.copy(self._files(tensors, sizes, owners))
            (own_file,) = self._own_staging.copy({RANKS: own_tensors})
        return Snapshot(
            skeletons=skeletons,
            sizes=sizes,
            files=files,
            own_skeleton=own_skeleton,
            own_file=own_file,
        )

    def _flatten(self) -> tuple[dict[str, Any], dict[str, Tensors], dict[str, dict[str, int]]]:
        """Return, by part, the skeletons and tensors of the state, and the ranks that write its pieces.

        Collective if a part is `Gathering`.
        """
        skeletons: dict[str, Any] = {}
        tensors: dict[str, Tensors] = {}
        owners: dict[str, dict[str, int]] = {}
        writes = self._rank in self._writers
        # All collectives first: after an error of a `state_dict` on one rank, the others would wait in the next one.
        for part in self._state.values():
            if isinstance(part, Gathering):
                part.gather_state_dict(keep=writes)
        if writes:
            for name, part in self._state.items():
                skeletons[name], tensors[name], owners[name] = flatten_shards(
                    part.state_dict(), path=name, rank=self._rank
                )
        return skeletons, tensors, owners

    def _files(
        self,
        tensors: Mapping[str, Tensors],
        sizes: Mapping[str, Mapping[str, int]],
        owners: Mapping[str, Mapping[str, int]],
    ) -> dict[str, Tensors]:
        """Return the tensors and pieces that this rank writes, by file."""
        if self._rank not in self._writers:
            return {}
        for part, each in owners.items():
            if missing := sorted(set(each.values()) - set(self._writers)):
                raise CheckpointError(
                    f'rank {missing[0]} has pieces of {part!r} and may not write: give share="all", and a location in '
                    "S3 or on a file system that all nodes share"
                )
        buffers = self._buffers()
        places = {
            part: {
                **dict.fromkeys(buffers.get(part, ()), 0),
                **{name: self._writers.index(rank) for name, rank in each.items()},
            }
            for part, each in owners.items()
        }
        shares = share(sizes, len(self._writers), places=places)[self._writers.index(self._rank)]
        return {each.name: {name: tensors[each.part][name] for name in each.tensors} for each in shares}

    def _buffers(self) -> dict[str, set[str]]:
        """Return the names of the modules' buffers, by part.

        Buffers may differ by rank: DistributedDataParallel broadcasts rank 0's before a forward pass, not after it,
        so the running statistics of BatchNorm differ in between. Rank 0 writes its own.
        """
        return {name: part.buffer_names for name, part in self._state.items() if isinstance(part, ModulePart)}


def _sizes(tensors: Mapping[str, Tensors]) -> dict[str, dict[str, int]]:
    return {part: {name: tensor.nbytes for name, tensor in each.items()} for part, each in tensors.items()}


# Divides the tensors among the ranks that write them.
#
# A pure function of names, sizes and places, so that every rank computes the same answer without communication. Whole
# tensors go, largest first, to the writer with the fewest bytes so far (Graham's longest-processing-time rule): beyond
# what is its own, no writer gets more than a fair share and one tensor.
WHOLE_BELOW = 2**20
"""Bytes. If the tensors of a part that any rank may write have fewer, the first writer writes them all: another file
would cost more than it saves."""

_ANYWHERE: Mapping[str, int] = {}


@dataclass(kw_only=True, slots=True, frozen=True)
class _FilePlan:
    """One file and its tensors."""

    name: str
    """The name of the file."""
    part: str
    """The part of the state."""
    tensors: tuple[str, ...]
    """The names of its tensors."""


def share(
    parts: Mapping[str, Mapping[str, int]], writers: int, *, places: Mapping[str, Mapping[str, int]] | None = None
) -> list[list[_FilePlan]]:
    """Return the files of each writer, at most one per part. Every tensor is in exactly one file.

    `parts` gives the bytes of each tensor. `places` gives the number of the writer for tensors that only one may write.
    """
    assert writers >= 1
    dealt: dict[str, list[list[str]]] = {part: [[] for _ in range(writers)] for part in parts}
    large: list[tuple[int, str, str]] = []
    bytes_of = [0] * writers
    for part, sizes in parts.items():
        placed = (places or {}).get(part, _ANYWHERE)
        is_small = writers == 1 or sum(size for name, size in sizes.items() if name not in placed) < WHOLE_BELOW
        for name, size in sizes.items():
            writer = placed.get(name, 0 if is_small else None)
            if writer is None:
                large.append((-size, part, name))
            else:
                dealt[part][writer].append(name)
                bytes_of[writer] += size
    loads = [(size, writer) for writer, size in enumerate(bytes_of)]
    heapq.heapify(loads)
    for negative, part, name in sorted(large):
        load, writer = loads[0]
        dealt[part][writer].append(name)
        heapq.heapreplace(loads, (load - negative, writer))
    return [[share for part in dealt for share in _share_of(part, dealt[part], writer)] for writer in range(writers)]


def _share_of(part: str, dealt: list[list[str]], writer: int) -> list[_FilePlan]:
    """Return the file of one writer for a part; empty if the writer has no tensor of it."""
    with_some = [each for each, names in enumerate(dealt) if names]
    if writer not in with_some:
        return []
    name = file_names(part, len(with_some))[with_some.index(writer)]
    return [_FilePlan(name=name, part=part, tensors=tuple(dealt[writer]))]
