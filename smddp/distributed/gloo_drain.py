"""Drain gloo's worker threads, so that none of them needs the interpreter when Python ends.

A worker of gloo's drops a collective's tensors after the caller has its result, and takes the GIL for those that Python
knows. If Python finalizes by then, CPython up to 3.13 ends the thread where it stands, in C++ that must not be unwound,
and the process aborts (https://github.com/pytorch/pytorch/issues/190489). Destroying the group is not enough: as long
as something holds it, DistributedDataParallel for example, its workers live on.

So every worker of every group gets a reduction of nothing, which needs no other rank, and meets the others in its
callback: a worker that has come there has dropped all that it had before. Then the reductions' own tensors and
callbacks are waited for. NCCL needs none of this: its watchdog leaves the tensors to the threads that call it.
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
_COPIES = 1024  # of nothing, after a reduction: the fraction of a millisecond that a callback's registration takes


def drain_gloo() -> None:
    """Return once no worker of gloo's holds anything of Python's, or after about ten seconds, with a warning.

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
        self._arrived = threading.Semaphore(0)
        self._over = threading.Event()
        self._dropped: list[weakref.ref[Any]] = []
        given = 0
        # A reduction that ends before its callback is registered calls it in this thread: another one is given.
        while given - self._missed < self._workers and time.monotonic() < deadline:
            self._give()
            given += 1

    def await_workers(self) -> bool:
        """Return whether all workers came before the deadline."""
        return all(
            self._arrived.acquire(timeout=max(0.0, self._deadline - time.monotonic())) for _ in range(self._workers)
        )

    def end(self) -> bool:
        """Let the workers go on; whether they have dropped what they got here."""
        self._over.set()
        deadline = max(self._deadline, time.monotonic() + _DROP_SECONDS)
        # Invariant: what a worker drops dies while it has the GIL. Who sees it dead has the GIL after that worker.
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
    """Remember the groups of the parent, which a forked child has without their threads."""
    _parents_groups.update(distributed_c10d._world.pg_map)  # noqa: SLF001


os.register_at_fork(after_in_child=_remember_parents_groups)
atexit.register(drain_gloo)
