"""Make multiprocessing's fork server survive a stop's signals: the server imports this module before it forks.

``scancel`` and ``kill -- -PGID`` signal the server, too. Without the server the parent cannot see whether its workers
are alive. The server still ends with the process that it serves.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import sys

from smddp.process.preemption import STOP_SIGNALS

_NAME = "smddp.process.fork_server"

_server: int | None = None
"""The PID of the fork server that imported this module."""


def outlive_stop() -> None:
    """Preload this module in the fork server, so that it survives a stop's signals. Without effect once it runs."""
    # Python has no way to add a module to the user's preload list.
    asked: list[str] = multiprocessing.forkserver._forkserver._preload_modules  # type: ignore[attr-defined]  # noqa: SLF001
    if _NAME not in asked:
        multiprocessing.set_forkserver_preload([*asked, _NAME])


def outlives_stop() -> bool:
    """Return whether this process's parent is not a fork server, or one that survives a stop's signals."""
    parent = multiprocessing.parent_process()
    return parent is None or parent.pid == os.getppid() or _server == os.getppid()


def _ignore(_signal_number: int, _frame: object) -> None:
    """Do nothing. Unlike SIG_IGN, a handler is not inherited through exec."""


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
    # Block signals over the fork: otherwise the server's handler would swallow a signal to a new child.
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_defaults)
