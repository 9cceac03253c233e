"""Refuses what begins a job in a process that multiprocessing starts by importing the script anew.

Workers started by ``spawn`` or ``forkserver``, Python 3.14's default on Linux, import the script under another name to
find their functions. A call that no ``if __name__ == "__main__":`` guards is made again in each of them.
"""

from __future__ import annotations

from multiprocessing import current_process

from smddp.errors import UnguardedScriptError


def refuse_in_import(call: str) -> None:
    """Refuse the call in a process that multiprocessing has started, and that still imports the script.

    Args:
        call: What begins a job, such as ``smddp.run(main)``.

    Raises:
        UnguardedScriptError: The process imports the script.
    """
    # multiprocessing's own mark, by which it refuses to start processes meanwhile.
    if getattr(current_process(), "_inheriting", False):
        raise UnguardedScriptError(
            f"a process that multiprocessing has started, such as a DataLoader's worker, imports the script, and the "
            f'script calls {call} again: put the call below `if __name__ == "__main__":`'
        )
