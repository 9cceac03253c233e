"""The ranks of a process group: the verbs by which they agree and share, and what they decide between two steps.

Every verb is called on all ranks. If an action fails on one rank, no other is left waiting: that rank raises its own
error, and the others raise PeerFailedError, so that the rank with the cause reports the job's failure. Without
torch.distributed there is one rank. Values travel on the CPU if the process group can carry CPU tensors, else on the
GPU.

Between two steps the ranks decide to stop, to save or to fail, by one tiny reduction, a few times a second. If one rank
alone sees SIGTERM, or its checkpoint fails, it must not leave the others waiting in their next collective:

1. At a step that all ranks know, each puts its own knowledge into a vector of eight numbers.
2. One all-reduce (MAX) gives all ranks the same vector, and so the same decision.
3. The next such step is computed from the vector too, so it is the same on all ranks without another question.
4. Until that step, a rank only compares two integers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from smddp.accelerator import current_device, device_kind
from smddp.distributed.device import CPU, backend_of
from smddp.errors import SmddpError
from smddp.process.preemption import StopSignal

T = TypeVar("T")

_PIECE = 64 * 2**20
"""Bytes broadcast at a time: the extra memory on a GPU, and on the CPU for small tensors."""

_ALONE = 2**20
"""Bytes of a tensor that is broadcast from and into its own memory, if ranks exchange tensors on the CPU. A smaller one
travels with others: copies of it take less time than a broadcast of its own."""

_SECONDS_APART = 0.25
_MOST_STEPS_APART = 50  # bounds how late a stop is noticed if steps become much slower suddenly


class PeerFailedError(SmddpError):
    """Another rank failed in a joint action; its own error has the cause."""

    def __init__(self, message: str, *, rank: int | None = None, told: str = "") -> None:
        """Keep the failed rank, if known, and the text of its error."""
        super().__init__(message)
        self.rank = rank
        self.told = told


@dataclass(kw_only=True, slots=True, frozen=True)
class Ranks:
    """This process among the ranks of a group."""

    rank: int
    world_size: int
    device: torch.device = CPU
    """The device of the tensors that ranks exchange."""

    @classmethod
    def current(cls) -> Ranks:
        """Return the ranks of the current default process group."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(rank=0, world_size=1)
        carries_cpu = backend_of(dist.get_backend_config(), "cpu") is not None
        device = CPU if carries_cpu else current_device(device_kind() or "cuda")
        return cls(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def agree(self, action: Callable[[], T]) -> T:
        """Run the action on every rank, and return this rank's own result once all have succeeded.

        If it fails here, raise its error; if it fails only on another rank, raise PeerFailedError.
        """
        result, text, error = _attempt(action)
        self._raise_first(self._from_each(text), error)
        return cast(T, result)

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Run the action on every rank, and return all (small) results in rank order; raise as ``agree``."""
        result, text, error = _attempt(action)
        results, texts = zip(*self._from_each((result, text)), strict=True)
        self._raise_first(texts, error)
        return list(results)

    def on_main(self, action: Callable[[], T]) -> T:
        """Run the action on rank 0, and return its (small) result on every rank.

        If it fails, rank 0 raises its error, and the others raise PeerFailedError.
        """
        result, text, error = _attempt(action) if self.is_main else (None, None, None)
        result, text = self.from_rank(0, (result, text))
        self._raise_first([text], error)
        return cast(T, result)

    def have_equal(self, *numbers: int) -> bool:
        """Return whether all ranks pass the same numbers of 64 bits; every rank passes as many. One small reduction."""
        if self.world_size == 1:
            return True
        own = torch.tensor(numbers, dtype=torch.int64)
        both = torch.cat([own, ~own]).to(self.device)  # the largest of each, and the complement of the smallest
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        largest, smallest = both.cpu().chunk(2)
        return torch.equal(largest, ~smallest)

    def from_rank(self, source: int, value: T) -> T:
        """Return on all ranks the (small) value of rank ``source``; the other ranks' values are ignored."""
        shared: list[Any] = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(shared, src=source, device=self.device)
        return shared[0]  # type: ignore[no-any-return]

    def broadcast(self, tensors: Iterable[torch.Tensor], *, source: int = 0) -> None:
        """Fill tensors with the content of rank ``source``.

        They are contiguous, on the CPU, and have the same order, shapes and dtypes on every rank.
        """
        if self.world_size == 1:
            return
        together: list[torch.Tensor] = []
        size = 0
        for tensor in tensors:
            for content in torch.split(tensor.detach().reshape(-1).view(torch.uint8), _PIECE):
                if self.device == CPU and len(content) >= _ALONE:
                    dist.broadcast(content, src=source)
                    continue
                if size + len(content) > _PIECE:
                    self._broadcast_together(together, source)
                    together, size = [], 0
                together.append(content)
                size += len(content)
        self._broadcast_together(together, source)

    def _broadcast_together(self, contents: list[torch.Tensor], source: int) -> None:
        """Broadcast several flat byte tensors as one."""
        sizes = list(map(len, contents))
        if sum(sizes) == 0:
            return
        if self.rank == source:
            piece = torch.cat(contents).to(self.device)
        else:
            piece = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        dist.broadcast(piece, src=source)
        if self.rank != source:
            for content, received in zip(contents, torch.split(piece.cpu(), sizes), strict=True):
                content.copy_(received)

    def _from_each(self, value: T) -> list[T]:
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def _raise_first(self, texts: Iterable[str | None], own: Exception | None) -> None:
        """Raise this rank's error; without one, raise PeerFailedError for the first rank that failed."""
        if own is not None:
            raise own
        for rank, text in enumerate(texts):
            if text is not None:
                raise PeerFailedError(f"rank {rank} failed: {text}", rank=rank, told=text)


def _attempt(action: Callable[[], T]) -> tuple[T | None, str | None, Exception | None]:
    """Return the action's result, or its error as text and as an exception."""
    try:
        return action(), None, None
    except Exception as error:  # not swallowed: raised once the other ranks know of it
        return None, error_text(error), error


def error_text(error: Exception) -> str:
    """Describe an error for the other ranks; smddp's own errors need no class name."""
    return str(error) if isinstance(error, SmddpError) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision of all ranks, the same on each."""

    stop: bool
    """At least one rank was asked to stop."""

    stop_age: float
    """Seconds since the first rank was asked to stop; -1 if none was."""

    save: bool
    """A checkpoint is due, by rank 0's clock or request."""

    failed: bool
    """At least one rank knows of a failure that must end the run."""

    held: bool
    """At least one rank's model holds exchanged weights, and the trained weights are in no checkpoint."""

    metrics_differ: bool
    """Two ranks reported different ``metrics``."""

    stall: float
    """The largest ``stall`` of all ranks, because the others waited for that rank."""


class Agreement:
    """The agreements of one training run; every rank must call ``decide`` at the same points."""

    def __init__(self, ranks: Ranks, stop_signal: StopSignal, *, save_seconds: float | None = None) -> None:
        self.next_step = 1
        """The step at which to call ``decide`` next."""
        self.save_seconds = save_seconds
        """Seconds from one checkpoint to the next, or None. Only rank 0's value counts, and it may change."""
        self.seconds_a_step = 0.0
        """Seconds of a recent step on the slowest rank, the same on all ranks; 0 before the first step."""
        self._ranks = ranks
        self._stop_signal = stop_signal
        stop_signal.heeded = True
        self._vector = torch.zeros(8, dtype=torch.float64, device=ranks.device)
        self._steps_apart = 1
        self._last_step = 0
        self._last_time = self._last_save = time.monotonic()

    def start(self, step: int) -> None:
        """Restart the clocks at this step, after a resume."""
        self._last_step = step
        self.next_step = step + 1
        self._last_time = self._last_save = time.monotonic()

    def decide(
        self,
        step: int,
        *,
        failed: bool = False,
        held: bool = False,
        stall: float = 0.0,
        save: bool = False,
        metrics: float = 0.0,
    ) -> Decision:
        """Return the decision of all ranks, and set ``next_step``; collective.

        The distance to the next decision begins at one step and doubles, up to a quarter of a second or 50 steps.
        ``step`` is the same on all ranks, ``stall`` the seconds that this rank's last save held up training. Only rank
        0's ``save`` counts. ``metrics`` is a positive digest of this rank's metrics, or 0 for none.
        """
        now = time.monotonic()
        taken = max(step - self._last_step, 1)
        is_due = self.save_seconds is not None and now - self._last_save >= self.save_seconds
        stop_age, to_save, any_failed, any_held, slowest_step, slowest_stall, highest, minus_lowest = self._largest(
            self._stop_signal.age,
            float((save or is_due) and self._ranks.is_main),
            float(failed),
            float(held),
            (now - self._last_time) / taken,
            stall,
            metrics,
            -metrics if metrics else -math.inf,
        )
        if step > self._last_step:
            self.seconds_a_step = slowest_step
            affordable = int(_SECONDS_APART / max(slowest_step, 1e-9))
            self._steps_apart = max(1, min(2 * self._steps_apart, affordable, _MOST_STEPS_APART))
        self.next_step = step + self._steps_apart
        self._last_step, self._last_time = step, now
        return Decision(
            stop=stop_age >= 0,
            stop_age=stop_age,
            save=to_save > 0,
            failed=any_failed > 0,
            held=any_held > 0,
            metrics_differ=highest > 0 and highest != -minus_lowest,
            stall=slowest_stall,
        )

    def saved(self) -> None:
        """Restart the clock of checkpoints, after any save."""
        self._last_save = time.monotonic()

    def _largest(self, *numbers: float) -> list[float]:
        """Return the maximum of each number over all ranks."""
        if self._ranks.world_size == 1:
            return list(numbers)
        self._vector.copy_(torch.tensor(numbers, dtype=torch.float64))
        dist.all_reduce(self._vector, op=dist.ReduceOp.MAX)
        return self._vector.tolist()


class StopQuestion:
    """Answer, alike on all ranks, whether the job was told to stop, for a loop that asks in each iteration.

    All ranks must ask equally often.
    """

    def __init__(self, ranks: Ranks, stop_signal: StopSignal) -> None:
        self._ranks = ranks
        self._stop_signal = stop_signal
        self._agreement: Agreement | None = None
        self._asked = 0
        self.answer = False
        """The last answer; it stays True from then on."""

    def __call__(self) -> bool:
        """Return the answer; ask the other ranks if due, a few times a second at most."""
        if self._agreement is None:
            self._agreement = Agreement(self._ranks, self._stop_signal)
        self._asked += 1
        if not self.answer and self._asked >= self._agreement.next_step:
            self.answer = self._agreement.decide(self._asked).stop
        return self.answer
