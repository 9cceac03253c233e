"""Drain gloo's worker threads, so that none of them needs the interpreter when Python ends.

A gloo worker drops a collective's tensors after the caller has its result, and takes the GIL for tensors that Python
knows. If Python finalizes meanwhile, CPython up to 3.13 ends the thread at that point, in C++ code that must not be
unwound, and the process aborts (https://github.com/pytorch/pytorch/issues/190489). Destroying the group is not enough:
its workers live as long as any reference to it, such as DistributedDataParallel's.

1. Every worker of every group gets a reduction of empty tensors, which needs no other rank.
2. The workers of a group meet in the callbacks of these reductions. A worker that arrives there has dropped everything
   from before.
3. The workers are released, and the reductions' own tensors and callbacks are waited for.

NCCL needs none of this: its watchdog leaves the tensors to the threads that call it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

logger = logging.getLogger(__name__)

_SECONDS = 10.0
_DROP_SECONDS = 1.0
_COPIES = 1024  # of the empty tensor: so the reduction usually outlasts the registration of its callback


def drain_gloo() -> None:
    """Return once no gloo worker refers to a Python object; after about ten seconds log a warning and return.

    No collective may follow: gloo numbers them, and from here on this rank's numbers differ from the other ranks'.
    """
    deadline = time.monotonic() + _SECONDS
    meetings = [_Meeting(backend, deadline) for backend in _gloo_backends()]
    arrived = [meeting.await_workers() for meeting in meetings]
    ended = [meeting.end() for meeting in meetings]
    if not all(arrived + ended):
        logger.warning(
            "a collective of gloo's is still under way after %g s, though this process ends: did every rank join it, "
            "and was it waited for? The process may abort",
            _SECONDS,
        )


class _Meeting:
    """The workers of one group, all held at once in a callback."""

    def __init__(self, backend: Any, deadline: float) -> None:
        self._backend = backend
        self._workers: int = backend.options._threads  # noqa: SLF001 - its only name before torch 2.15
        self._deadline = deadline
        self._caller = threading.get_ident()
        self._missed = 0
        # Order: each worker that is held releases `_arrived` once, and then waits for `_over`: it can't come twice.
        # Bound: a worker waits until the deadline plus `_DROP_SECONDS`, whatever the caller does.
        self._arrived = threading.Semaphore(0)
        self._over = threading.Event()
        self._dropped: list[weakref.ref[Any]] = []
        given = 0
        # A reduction that ends before its callback is registered calls it in this thread, so another one is started.
        while given - self._missed < self._workers and time.monotonic() < deadline:
            self._give()
            given += 1

    def await_workers(self) -> bool:
        """Return whether all workers arrived before the deadline."""
        return all(
            self._arrived.acquire(timeout=max(0.0, self._deadline - time.monotonic())) for _ in range(self._workers)
        )

    def end(self) -> bool:
        """Release the workers; return whether they have dropped the reductions' tensors and callbacks."""
        self._over.set()
        deadline = max(self._deadline, time.monotonic() + _DROP_SECONDS)
        # Invariant: an object that a worker drops dies while that worker owns the GIL. This thread sees it dead only
        # while it owns the GIL itself, so after the worker.
        while any(reference() is not None for reference in self._dropped):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True

    def _give(self) -> None:
        nothing, meet = torch.empty(0), partial(self._meet)
        self._dropped += [weakref.ref(nothing), weakref.ref(meet)]
        self._backend.allreduce([nothing] * _COPIES).get_future().add_done_callback(meet)

    def _meet(self, _future: object) -> None:
        if threading.get_ident() == self._caller:
            self._missed += 1
            return
        self._arrived.release()
        self._over.wait(max(0.0, self._deadline - time.monotonic()) + _DROP_SECONDS)


_parents_groups: weakref.WeakSet[Any] = weakref.WeakSet()


def _gloo_backends() -> Iterable[Any]:
    if not (dist.is_available() and dist.is_gloo_available()):
        return ()
    groups = [group for group in distributed_c10d._world.pg_map if group not in _parents_groups]  # noqa: SLF001
    backends = [group._get_backend(device) for group in groups for device in group._device_types]  # noqa: SLF001
    # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps each; one backend may serve several devices.
    backends = [getattr(backend, "wrapped_pg", backend) for backend in backends]
    return dict.fromkeys(backend for backend in backends if isinstance(backend, dist.ProcessGroupGloo))


def _remember_parents_groups() -> None:
    """Remember the parent's groups: a forked child inherits them without their threads."""
    _parents_groups.update(distributed_c10d._world.pg_map)  # noqa: SLF001


os.register_at_fork(after_in_child=_remember_parents_groups)
atexit.register(drain_gloo)
