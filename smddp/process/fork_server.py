"""What makes multiprocessing's fork server outlive a stop: the server imports it before it forks.

``scancel`` and ``kill -- -PGID`` signal the server too. If that ended the server, nobody would tell the parent of its
children that they live. The server ends with the process that it serves, as without this module.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import sys

from smddp.process.preemption import STOP_SIGNALS

_NAME = "smddp.process.fork_server"

_server: int | None = None
"""The process that has imported this module as the fork server."""


def outlive_stop() -> None:
    """Let the fork server outlive a stop's signals, unless it has been started already."""
    # Python offers no way to add a module to those that the caller's program has asked for.
    asked: list[str] = multiprocessing.forkserver._forkserver._preload_modules  # type: ignore[attr-defined]  # noqa: SLF001
    if _NAME not in asked:
        multiprocessing.set_forkserver_preload([*asked, _NAME])


def outlives_stop() -> bool:
    """Return whether the parent of this process, if that is a fork server, outlives a stop's signals."""
    parent = multiprocessing.parent_process()
    return parent is None or parent.pid == os.getppid() or _server == os.getppid()


def _ignore(_signal_number: int, _frame: object) -> None:
    """Do nothing. Unlike SIG_IGN, it is not inherited by a program that a process starts."""


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _restore_defaults() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _unblock()


# ``python -c "from multiprocessing.forkserver import main; ..."``
if any("multiprocessing.forkserver" in word for word in sys.orig_argv[-1:]):
    _server = os.getpid()
    for _number in STOP_SIGNALS:
        signal.signal(_number, _ignore)
    # Blocked meanwhile: a child's first signal must not meet the server's handler.
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_defaults)
