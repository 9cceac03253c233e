"""The handle on the process that removes a cluster's containers: see ``container_reaper.py``."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from estimators.docker.docker_program import bind, program
from estimators.local.directory_reaper_process import Lifeline
from estimators.local.executors.docker.container_reaper import HANDED_OVER, REMOVED, ROOTS, SHARED
from estimators.local.executors.executor import HandOverError

logger = logging.getLogger(__name__)

REMOVED_SECONDS = 30.0
HANDED_OVER_SECONDS = 900.0
"""Long, because a job's saved files must not be given up only because Docker is busy."""
_PROGRAM = str(Path(__file__).with_name("container_reaper.py"))


class ContainerReaperProcess:
    """A process that removes a cluster's containers when it is told to, or when this process is gone.

    ``lifeline`` belongs to the directory that the containers write in; the process has it until it ends. A container of
    ``image`` hands the files over. Everything in ``roots`` becomes this process's user's; in ``shared`` files and
    directories, only what root comes to own from now on. ``orphan_seconds`` is the containers' time to end after
    SIGTERM when this process is gone.
    """

    def __init__(
        self,
        cluster: str,
        lifeline: Lifeline | None,
        image: str,
        roots: Iterable[str],
        *,
        shared: Iterable[str] = (),
        orphan_seconds: int = 0,
    ) -> None:
        self._cluster = cluster
        self._hands_over = os.geteuid() != 0  # root may read what anyone wrote
        mounts = (*_mounts(ROOTS, roots), *_mounts(SHARED, shared))
        owner = [f"{os.geteuid()}:{os.getegid()}", image, *mounts] if self._hands_over else []
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _PROGRAM, program(), cluster, str(orphan_seconds), *owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[] if lifeline is None else [lifeline.fileno()],
            start_new_session=True,  # so that it outlives whatever ends this process
            cwd="/",
            bufsize=0,
        )
        assert self._process.stdin is not None
        self._alive = self._process.stdin
        self._said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, name=f"reaper of {cluster}", daemon=True).start()

    @property
    def alive(self) -> int:
        """The descriptor that must stay open in each program that makes something to be removed."""
        return self._alive.fileno()

    def begin(self, *, unsure: bool) -> None:
        """Start the removal; ``unsure``: Docker may still be creating a container."""
        with suppress(BrokenPipeError), self._alive:
            self._alive.write(b"?" if unsure else b"")

    def await_end(self) -> None:
        """Return when the containers are removed, or Docker fails to, and their files are handed over.

        Raise HandOverError with the reason if they are not handed over.
        """
        # Each wait for a line is bounded: REMOVED_SECONDS for the first, HANDED_OVER_SECONDS for the others.
        if self._hear(REMOVED_SECONDS) != REMOVED:
            logger.warning("Docker has not removed the containers of %s yet", self._cluster)
            if self._hands_over:
                self._hear(HANDED_OVER_SECONDS)
        if self._hands_over and (said := self._hear(HANDED_OVER_SECONDS)) != HANDED_OVER:
            raise HandOverError(
                "what the hosts wrote as other users could not be given to the user who runs the platform: "
                + (said or f"Docker has not done it within {HANDED_OVER_SECONDS:g} seconds")
            )

    def _hear(self, seconds: float) -> str:
        """Return the next line; empty if none comes in time."""
        try:
            return self._said.get(timeout=seconds)
        except queue.Empty:
            return ""

    def _listen(self) -> None:
        """Queue every line to the end: a closed pipe would tell the reaper that this process is gone."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.put(line.decode(errors="replace").rstrip("\n"))
        self._process.wait()
        for _ in range(3):  # ends the waits for a line that are left
            self._said.put("")


def _mounts(target: str, sources: Iterable[str]) -> list[str]:
    return [bind(source, f"{target}/{number}") for number, source in enumerate(sources)]
