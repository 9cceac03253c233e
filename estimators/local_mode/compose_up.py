"""The program that runs in Compose's place, and lets Compose do the work.

Compose is told what the SDK does not tell it: where checkpoints are kept, how much shared memory there is, a network of
the job's own. And a job ends as it does on SageMaker: when all hosts are done, or the first fails. Compose's own
``--abort-on-container-exit`` kills every host as soon as one is done. Before the SDK looks at any file, all of
them are the user's, and containers and network are gone.
"""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import FrameType

from estimators.docker.docker_program import DockerError
from estimators.docker.ownership import give_back
from estimators.local_mode.containers import Containers
from estimators.local_mode.directory import JobDirectory, Outcome
from estimators.local_mode.job_outcome import job_outcome
from estimators.local_mode.output import TAIL_LINES, Output, discard
from estimators.local_mode.overlay import STOP_SECONDS, literal, overlay, services_of

logger = logging.getLogger(__name__)

_CLEAR_SECONDS = 10
"""What the other hosts get when one has failed: they can't agree on a checkpoint any more."""
_LOOK_SECONDS = 1.0
AWAY_SECONDS = 60.0
"""How long an engine may be away, as when it is restarted, while the hosts run on."""
_ATTEMPTS = 3

_Event = tuple[str, int] | None
"""A host's end with its exit code; None: the user asks for the job's end."""


def main(arguments: Sequence[str]) -> int:
    """Run ``COMPOSE… -- ARGUMENTS…``: a job's ``up`` with care, anything else as it is.

    Returns:
        The exit code: 0 after a good end.
    """
    # A closed terminal's SIGHUP and its Ctrl-C are for fit(), which asks for the job's end.
    with suppress(PermissionError):  # it leads a session already
        os.setsid()
    separator = arguments.index("--")
    compose, asked = arguments[:separator], arguments[separator + 1 :]
    file = Path(asked[asked.index("-f") + 1]) if "-f" in asked and "up" in asked else None
    directory = JobDirectory.of(file) if file else None
    if file is None or directory is None:
        os.execv(compose[0], [*compose, *asked])  # noqa: S606 - the user's own Compose
    return _Up(compose, file, directory).run()


class _Up:
    """One job, from the start of its containers until nothing of them is left."""

    def __init__(self, compose: Sequence[str], file: Path, directory: JobDirectory) -> None:
        self._directory = directory
        self._instructions = directory.instructions
        services = services_of(file.parent)
        ours = directory.path / "compose.json"
        content = file.read_text()
        file.write_text(literal(content))
        ours.write_text(literal(json.dumps(overlay(content, services, self._instructions, directory.label))))
        self._compose = [*compose, "-f", str(file), "-f", str(ours)]
        self._roots = {host: file.parent / service for service, host in services.items()}
        self._output = Output(self._roots, shows=self._instructions.shows_log)
        self._containers = Containers(directory.label)
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()  # its put() may be called by a signal handler
        self._ended: set[str] = set()
        self._told: set[str] = set()
        self._left: set[str] = set()
        self._away_since: float | None = None
        self._heard = False
        self._asked = False

    def run(self) -> int:
        """Run the job; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Also, Compose would not hear SIGINT where a shell lets jobs in the background ignore it.
            signal.signal(number, self._hear)
        self._directory.process.write_text(str(os.getpid()))
        self._keep_checkpoint_path()
        watcher = self._containers.watch(lambda host, code: self._events.put((host, code)))
        try:
            outcome = self._outcome()
            self._directory.conclude(outcome)
        finally:
            watcher.terminate()
            watcher.wait()
            try:
                self._give_back()  # all but nothing, if it was done already
            finally:
                self._tidy()
        return 0 if outcome.status == "Completed" else 1

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        """The user asks for the job's end, once more: at once. SIGHUP: nobody reads any more what is printed."""
        if number == signal.SIGHUP:
            discard()
            if self._heard:
                return
        self._heard = True
        self._events.put(None)

    def _outcome(self) -> Outcome:
        """How the job ended, once it has."""
        code, said = self._up()
        try:
            self._give_back()  # of what root alone may read, too, the outcome of the job is made
            ends = self._containers.ends()
        except DockerError as fault:
            return Outcome(status="Failed", host=None, reason=f"Docker does not say how its hosts ended: {fault}")
        return job_outcome(
            ends,
            told=self._told,
            asked=self._asked,
            left=self._left,
            roots=self._roots,
            tails=self._output.tails,
            compose_code=code,
            compose_said=said,
        )

    def _up(self) -> tuple[int, str]:
        """Compose's exit code, and what it said itself."""
        process = subprocess.Popen(
            [*self._compose, "up", "--no-color"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        said: deque[str] = deque(maxlen=TAIL_LINES)
        words = io.TextIOWrapper(process.stderr, encoding="utf-8", errors="replace")
        listener = Thread(target=said.extend, args=(words,))
        listener.start()
        conductor = Thread(target=self._conduct, args=(process,))
        conductor.start()
        self._output.follow(process.stdout)
        code = process.wait()
        listener.join()
        conductor.join()
        self._containers.join_stops()
        return code, "".join(said).strip()

    def _conduct(self, process: subprocess.Popen[bytes]) -> None:
        """End the hosts when the job is over, or is to be; stay until the last has ended, even if Compose does not."""
        grace: float | None = None
        while process.poll() is None or self._outlive_compose():
            if self._left and grace is None:
                grace = STOP_SECONDS
            try:
                event = self._events.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if self._is_orphan and not self._asked:
                    self._events.put(None)
            else:
                if event is not None:
                    self._ended.add(event[0])
                    if grace is None and self._ends_the_job(*event):
                        grace = _CLEAR_SECONDS
                else:
                    at_once, self._asked, grace = self._asked, True, STOP_SECONDS
                    self._end(process, at_once=at_once)
            if grace is not None:
                self._tell(grace)

    def _outlive_compose(self) -> bool:
        """Whether hosts run on when Compose has ended, as far as is known; it left those that nobody told to end."""
        try:
            hosts = set(self._containers.still_running().values())
        except DockerError as fault:
            if self._away_since is None:
                self._away_since = time.monotonic()
                logger.warning("%s Asking again for %g s whether hosts still run.", fault, AWAY_SECONDS)
            return time.monotonic() - self._away_since < AWAY_SECONDS
        self._away_since = None
        self._left |= hosts - self._told
        return bool(hosts)

    def _end(self, process: subprocess.Popen[bytes], *, at_once: bool) -> None:
        """The user asks for the job's end: of Compose, if it pulls or creates, and of the hosts, if it is urgent."""
        try:
            running = self._containers.running()
        except DockerError as fault:
            logger.warning("%s Ending Docker Compose instead.", fault)
            running = {}
        if at_once and running:
            self._containers.kill(running)
        if at_once or not (running or self._ended):
            with suppress(ProcessLookupError):  # as a terminal does it: not every `docker` tells its plugin
                os.killpg(process.pid, signal.SIGINT)

    @property
    def _is_orphan(self) -> bool:
        """Whether fit() was killed, so that nobody else ends the job and cleans up."""
        return os.getppid() != self._instructions.fit_process

    def _ends_the_job(self, host: str, code: int) -> bool:
        return code != 0 or (self._instructions.ends_with_first_host and host == next(iter(self._roots)))

    def _tell(self, grace_seconds: float) -> None:
        """Stop each host once; one that starts late is told when it is there."""
        try:
            running = self._containers.running()
        except DockerError as fault:
            logger.warning("%s Asking again.", fault)
            return
        # One that has just ended may still be listed.
        untold = {identity: host for identity, host in running.items() if host not in self._told | self._ended}
        if untold:
            self._told |= set(untold.values())
            self._containers.stop(untold, grace_seconds=grace_seconds)

    def _give_back(self) -> None:
        """Make the user the owner of all that the hosts wrote."""
        written = [self._directory.containers, self._directory.code]
        if self._instructions.checkpoints:
            written.append(Path(self._instructions.checkpoints))
        try:
            give_back(
                [path for path in written if path.exists()], self._instructions.image, since=self._directory.stamp
            )
        except DockerError as error:
            logger.warning("These may hold files that root owns: %s. %s", ", ".join(map(str, written)), error)

    def _tidy(self) -> None:
        """Leave nothing but the user's files."""
        for attempt in range(_ATTEMPTS):
            time.sleep(attempt)  # an endpoint of a container that has just ended may still be there
            try:
                self._containers.remove()
            except DockerError as fault:
                left = fault
            else:
                break
        else:
            logger.warning("Containers or the network of the job may be left: %s", left)
        self._directory.process.unlink(missing_ok=True)
        if self._is_orphan:
            self._directory.remove()

    def _keep_checkpoint_path(self) -> None:
        """Tell the hosts where their checkpoints are, as the platform does."""
        content = json.dumps({"LocalPath": self._instructions.checkpoint_path})
        for root in self._roots.values():
            (root / "input" / "config" / "checkpointconfig.json").write_text(content)
