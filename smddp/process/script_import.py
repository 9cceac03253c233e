"""Refuse to start a job in a multiprocessing worker that is importing the script.

Workers of ``spawn`` or ``forkserver``, Python 3.14's default on Linux, import the script under another name to find
their functions. A call without the guard ``if __name__ == "__main__":`` would run again in each worker.
"""

from __future__ import annotations

from multiprocessing import current_process

from smddp.errors import UnguardedScriptError


def refuse_in_import(call: str) -> None:
    """Raise UnguardedScriptError for a call such as ``smddp.run(main)`` in a worker that is importing the script."""
    # multiprocessing's own flag, by which it refuses to start processes during the import.
    if getattr(current_process(), "_inheriting", False):
        raise UnguardedScriptError(
            f"a process that multiprocessing has started, such as a DataLoader's worker, imports the script, and the "
            f'script calls {call} again: put the call below `if __name__ == "__main__":`'
        )
