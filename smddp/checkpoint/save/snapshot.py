"""The state of a run at one moment, on one rank: what of it this rank writes, copied into memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smddp.checkpoint.format.state_tree import flatten
from smddp.checkpoint.restore import rng
from smddp.checkpoint.restore.restoring import RANKS, RNG, Sharded, Stateful
from smddp.checkpoint.save.sharing import share
from smddp.checkpoint.save.staging import StagedFile, Staging
from smddp.errors import CheckpointError
from smddp.job.weight_names import plain_name, plain_state

Tensors = Mapping[str, torch.Tensor]


@dataclass(kw_only=True, slots=True, frozen=True)
class Snapshot:
    """The state at one moment, apart from what training changes next."""

    skeletons: Mapping[str, Any]
    """All but the tensors of the replicated state, by part; empty on a rank that writes nothing of it."""
    sizes: Mapping[str, Mapping[str, int]]
    """Bytes of its tensors, by part and name; empty too."""
    files: Sequence[StagedFile]
    """What this rank writes of it."""
    own_skeleton: Any
    """This rank's own state without the tensors."""
    own_file: StagedFile
    """The tensors of this rank's own state; their names begin with the rank's number."""


class Snapshotter:
    """Takes the state of a run, again and again, into the same memory."""

    def __init__(
        self, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], *, rank: int, writers: Sequence[int]
    ) -> None:
        """Prepare.

        Args:
            state: The parts that are the same on all ranks, by name.
            per_rank: The parts that each rank has its own of.
            rank: This one.
            writers: The ranks that share the writing of what is the same on all.
        """
        self._state = state
        self._per_rank = per_rank
        self._rank = rank
        self._writers = writers
        self._staging, self._own_staging = Staging(), Staging()

    def take(self) -> Snapshot:
        """Copy the state as it is now; it may be changed as soon as this returns.

        What comes from a GPU is in memory once `await_copies` returns.

        Raises:
            CheckpointError: Something in the state cannot be saved; says what and where.
        """
        try:
            return self._take()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"could not take the state: {type(error).__name__}: {error}") from error

    def await_copies(self) -> float:
        """Return once the state that was taken last has come from the GPUs.

        Returns:
            The seconds for which that held training up on a GPU, beyond those that `take` kept the CPU.
        """
        return self._staging.await_copies() + self._own_staging.await_copies()

    def preparation(self) -> Callable[[], None]:
        """Return what takes the memory for a state like the present one; it may be called beside training."""
        _, tensors = self._flatten()
        files = {
            file: {name: tensor.detach() for name, tensor in each.items()}
            for file, each in self._files(tensors, _sizes(tensors)).items()
        }
        return lambda: self._staging.prepare(files)

    def _take(self) -> Snapshot:
        skeletons, tensors = self._flatten()
        sizes = _sizes(tensors)
        own: dict[str, Any] = {RNG: rng.capture()} | {name: part.state_dict() for name, part in self._per_rank.items()}
        own_skeleton, own_tensors = flatten({str(self._rank): own}, path=RANKS)
        files = self._staging.copy(self._files(tensors, sizes))
        (own_file,) = self._own_staging.copy({RANKS: own_tensors})
        return Snapshot(
            skeletons=skeletons,
            sizes=sizes,
            files=files,
            own_skeleton=own_skeleton[str(self._rank)],
            own_file=own_file,
        )

    def _flatten(self) -> tuple[dict[str, Any], dict[str, Tensors]]:
        """Take the replicated state apart, on a rank that writes some of it; collective where the ranks share some."""
        skeletons: dict[str, Any] = {}
        tensors: dict[str, Tensors] = {}
        writes = self._rank in self._writers
        for part in self._state.values():  # before anything may fail on one rank alone: the others would wait for it
            if isinstance(part, Sharded):
                part.gather_state_dict(keep=writes)
        if writes:
            for name, part in self._state.items():
                skeletons[name], tensors[name] = flatten(_state_of(part), path=name)
        return skeletons, tensors

    def _files(self, tensors: Mapping[str, Tensors], sizes: Mapping[str, Mapping[str, int]]) -> dict[str, Tensors]:
        """Return the tensors that this rank writes, by file."""
        if self._rank not in self._writers:
            return {}
        shares = share(sizes, len(self._writers), of_first=self._buffers())[self._writers.index(self._rank)]
        return {each.name: {name: tensors[each.part][name] for name in each.tensors} for each in shares}

    def _buffers(self) -> dict[str, set[str]]:
        """Return the names of the modules' buffers, by part.

        They are not quite the same on all ranks: DistributedDataParallel gives rank 0's to the others before a forward
        pass, not after it, and the running statistics of BatchNorm differ until then. Those of rank 0 count.
        """
        modules = {name: part for name, part in self._state.items() if isinstance(part, torch.nn.Module)}
        return {part: {plain_name(name) for name, _ in module.named_buffers()} for part, module in modules.items()}


def _state_of(part: Stateful) -> Any:
    return plain_state(part.state_dict()) if isinstance(part, torch.nn.Module) else part.state_dict()


def _sizes(tensors: Mapping[str, Tensors]) -> dict[str, dict[str, int]]:
    return {part: {name: tensor.nbytes for name, tensor in each.items()} for part, each in tensors.items()}
