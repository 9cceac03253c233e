"""Compare the replicas of a model bit by bit, and name what differs: a flipped bit, a forgotten average.

DistributedDataParallel averages gradients only, so replicas that differ once stay different, without an error.

1. Each rank hashes its tensors on their device, and one small reduction compares the hashes. Only if these differ do
   the ranks gather a hash of each tensor, so that all name the same tensor.
2. The hash is ``sum(word * weight)`` modulo 2**64 over the bits, in words of at most 32 bits, with a fixed random odd
   weight for each word; sums of blocks are hashed the same way. One flipped bit always changes it, because an odd
   weight has an inverse. Any other difference changes it with a probability of 1 - 2**-32 or more over the choice of
   the weights (Lemire and Kaser, "Strongly universal string hashing is fast", 2014). NaN payloads and -0.0 count by
   their bits.
3. A buffer belongs to rank 0: `Replica.share_buffers` copies it to all ranks after each step. Between two copies
   forward passes write buffers on each rank, differently, as BatchNorm does, and perhaps on some ranks only. So each
   rank compares a buffer with its values at the last copy. A difference causes a warning, not an error, because the
   next copy removes it; and only if some ranks differ from the others by just one bit of one buffer.
"""

from __future__ import annotations

import logging
import socket
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from smddp.display_text import shown_names, shown_ranks
from smddp.distributed.membership import Membership
from smddp.distributed.replica import Replica, alike
from smddp.errors import ReplicasDifferError

logger = logging.getLogger(__name__)

_CPU_BLOCK = 2**16
_GPU_BLOCK = 2**22
"""Words hashed at a time: on a CPU their products fit the cache, on a GPU few kernels are started."""

_PIECE = 2**20
"""Bytes of small tensors that are hashed together: a copy of them still fits a CPU's cache."""

_WORDS = {1: torch.uint8, 2: torch.int16}
_SHOWN = 3

Hash = tuple[int, int]
"""A hash of the shapes and types, and one of the bits."""


class _Change(Enum):
    """How a buffer has changed since it was shared."""

    NONE = auto()
    BIT = auto()
    MORE = auto()


class ReplicaCheck:
    """Compare one model's replicas, and the average of its weights; all ranks call ``compare`` at the same steps."""

    def __init__(self, replica: Replica, module: nn.Module, membership: Membership, average: nn.Module | None) -> None:
        self._replica = replica
        replica.keeps_shared = True
        self._modules = {"": module} if average is None else {"": module, "ema: ": average}
        self._membership = membership
        self._equal_at: int | None = None
        self._told: set[str] = set()

    def compare(self, step: int) -> None:
        """Raise ReplicasDifferError on all ranks if a weight differs; warn of a buffer that differs. Collective.

        Call it before the buffers are shared anew.
        """
        weights = [weight for module in self._modules.values() for _, weight in _weights_of(module)]
        changed = [change is not _Change.NONE for _, change in self._buffers()]
        if not self._membership.ranks.have_equal(*hash_of(weights), zlib.crc32(bytes(changed))):
            self._name_difference(step)
        self._equal_at = step

    def _buffers(self) -> list[tuple[Tensor, _Change]]:
        """Return the buffers that were shared, and how each has changed on this rank since."""
        found: list[tuple[Tensor, _Change]] = []
        for buffers, together in self._replica.shared_buffers:
            if sum(buffer.numel() for buffer in buffers) != together.numel():  # the script has replaced one
                continue
            values = torch.split(together, [buffer.numel() for buffer in buffers])
            bits = [words_of(each.detach()) ^ words_of(value) for each, value in zip(buffers, values, strict=True)]
            words = torch.stack([each.count_nonzero() for each in bits]).tolist()
            further_bits = torch.stack([(each & (each - 1)).count_nonzero() for each in bits]).tolist()
            for buffer, count, further in zip(buffers, words, further_bits, strict=True):
                is_bit = count == 1 and not further
                found.append((buffer, _Change.BIT if is_bit else _Change.MORE if count else _Change.NONE))
        return found

    def _name_difference(self, step: int) -> None:
        """Gather a hash of each tensor, and tell which ones differ."""
        names_of_buffers = {id(buffer): name for name, buffer in self._modules[""].named_buffers()}
        buffers = {names_of_buffers.get(id(buffer), ""): change for buffer, change in self._buffers()}
        weights = {
            prefix + name: hash_of([weight])
            for prefix, module in self._modules.items()
            for name, weight in _weights_of(module)
        }
        of_ranks = self._membership.ranks.gather(lambda: (socket.gethostname(), weights, buffers))
        hosts, of_weights, of_buffers = zip(*of_ranks, strict=True)
        self._warn_of_buffer(step, of_buffers, hosts)
        names = dict.fromkeys(name for each in of_weights for name in each)
        groups = {name: _groups(each.get(name) for each in of_weights) for name in names}
        if differing := {name: each for name, each in groups.items() if len(each) > 1}:
            raise ReplicasDifferError(self._describe(step, differing, hosts))

    def _warn_of_buffer(self, step: int, of_ranks: Sequence[Mapping[str, _Change]], hosts: tuple[str, ...]) -> None:
        """Warn if some ranks differ from the others by just one changed bit of one buffer."""
        changes = {name: [each.get(name, _Change.NONE) for each in of_ranks] for name in of_ranks[0]}
        on_some = {name: each for name, each in changes.items() if _Change.NONE in each and set(each) != {_Change.NONE}}
        if len(on_some) != 1:
            return
        ((name, found),) = on_some.items()
        if _Change.MORE not in found and name not in self._told:
            self._told.add(name)
            if self._membership.cluster.is_main:
                logger.warning(
                    "step %d: since the step before, one bit of the buffer %s has changed, on %s only. All ranks get "
                    "rank 0's values. If the script does not write it there, suspect the memory or GPU",
                    step,
                    name,
                    _named([rank for rank, change in enumerate(found) if change is _Change.BIT], hosts),
                )

    def _describe(self, step: int, differing: Mapping[str, list[list[int]]], hosts: tuple[str, ...]) -> str:
        first, *others = differing
        more = f" (also in {shown_names(others, most=_SHOWN)})" if others else ""
        before = f"They were equal at step {self._equal_at}"
        if self._equal_at is None:
            before = "No earlier step of this attempt was compared"
        elif self._equal_at == step:
            before = "They were equal when the step ended"
        who = _who_differs(differing[first], hosts)
        return (
            f"at step {step} the ranks have different weights: {who} in {first}{more}. "
            f"{before}. This state was not saved: start the job again, and all ranks resume from the newest "
            "checkpoint. If it happens again, look for code that changes weights on some ranks only, or that computes "
            "a loss by layers instead of trainer.model(...); if the host is the same each time, suspect its memory or "
            "GPU. check_replicas=None turns the comparison off"
        )


def _weights_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that DistributedDataParallel makes equal, with their names: it can be told to ignore some."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    for name, weight in module.named_parameters():
        if name not in ignored and not weight.is_meta and not is_lazy(weight):
            yield name, weight


def _groups(values: Iterable[Hash | None]) -> list[list[int]]:
    """Return the ranks in groups of equal values, the largest first."""
    groups: dict[Hash | None, list[int]] = {}
    for rank, value in enumerate(values):
        groups.setdefault(value, []).append(rank)
    return sorted(groups.values(), key=len, reverse=True)


def _who_differs(groups: list[list[int]], hosts: tuple[str, ...]) -> str:
    """Describe which ranks differ: the minority if most ranks agree, otherwise all groups."""
    largest, *others = groups
    if 2 * len(largest) <= len(hosts):
        return f"{', '.join(_named(group, hosts) for group in groups)} differ from each other"
    odd = sorted(rank for group in others for rank in group)
    return f"{_named(odd, hosts)} {'differs' if len(odd) == 1 else 'differ'} from the other {len(largest)} ranks"


def _named(ranks: list[int], hosts: tuple[str, ...]) -> str:
    return shown_ranks({rank: hosts[rank] for rank in ranks})


def hash_of(tensors: Iterable[Tensor]) -> Hash:
    """Return a hash of the tensors' bits, shapes and types. It waits for a GPU."""
    present = [each.detach() for each in tensors if each.layout == torch.strided and not is_lazy(each)]
    layout = zlib.crc32(repr([(each.dtype, tuple(each.shape)) for each in present]).encode())
    sums = [_fold([_wide_words(each) for each in piece]) for piece in alike(present, _PIECE)]
    # On the first one's device: the CPU waits for the GPU once, not once a piece.
    return layout, int(_fold([each.to(sums[0].device).reshape(1) for each in sums])) if sums else 0


def words_of(tensor: Tensor) -> Tensor:
    """Return the tensor's bits as a flat tensor of integers."""
    # A view that conjugates or negates has other bits in memory than its values; a column has strides.
    bits = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bits.view(_WORDS.get(tensor.element_size(), torch.int32))


def _wide_words(tensor: Tensor) -> Tensor:
    """Return the words of a tensor, two values of 16 bits in one: half the words take half the time."""
    words = words_of(tensor)
    if words.dtype != torch.int16 or len(words) % 2:
        return words
    return (words if words.storage_offset() % 2 == 0 else words.clone()).view(torch.int32)


def _fold(parts: list[Tensor]) -> Tensor:
    """Return the hash of flat integers of one type and device, a scalar on this device."""
    words = parts[0] if len(parts) == 1 else torch.cat(parts)
    weights = _weights(words.device)
    while True:
        # A product is int64, and a sum too: both wrap around.
        sums: list[Tensor] = [(block * weights[: len(block)]).sum() for block in torch.split(words, len(weights))]
        if len(sums) == 1:
            return sums[0]
        words = torch.stack(sums)


@cache
def _weights(device: torch.device) -> Tensor:
    """Return random odd numbers of 64 bits, the same on all ranks."""
    size = _CPU_BLOCK if device.type == "cpu" else _GPU_BLOCK
    drawn = torch.randint(-(2**63), 2**63 - 1, (size,), generator=torch.Generator().manual_seed(0))
    return (drawn | 1).to(device)
