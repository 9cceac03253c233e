"""A warm parent: a process that has imported what the ranks need, and from which they are forked in milliseconds.

It is a child of the process that starts the ranks, lives as long, and serves each attempt. Its program is
``smddp.process.warm_program``. A program that was forked from a warm parent may have one from the beginning.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from smddp.process.output_lines import STDOUT, ChildStreams
from smddp.process.process_tree import adopt_orphans

logger = logging.getLogger(__name__)

VARIABLE = "SMDDP_WARM"
"""``0`` starts each rank as a new Python."""
ROOM_VARIABLE = "SMDDP_WARM_ROOM"
_PIECE_BYTES = 1 << 16
_ENDED = "the warm parent has ended, or does not answer"
_FORK_SECONDS = 20.0
"""Seconds in which a rank must be forked: the parent may be stopped, or its host may be out of memory."""
_LOOK_SECONDS = 0.01
_LOST_STATUS = 255 << 8
"""The status of a process that something else has reaped, which is exit code 255: an unknown end is no success."""

_READ_AT_LOAD = (
    *("LD_", "MALLOC_", "GLIBC_", "LANG", "LC_", "PYTHON", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_"),
    *("BLIS_", "TORCH", "PYTORCH_", "ATEN_", "C10_", "CUDA_", "CUDNN_", "CUBLAS", "NVIDIA_", "HIP_", "ROCM_", "HSA_"),
    *("ONEDNN_", "DNNL_", "MKLDNN_", "NPY_", "OPENSSL_", "KINETO_", "TRITON_", "NVRTC_", "I_MPI_", "TZ"),
    "TMPDIR",  # `warm_program` gives the directory to imports without a look at it
    "TQDM_",  # tqdm looks through all variables, and so for those that are not there
)
_READ_LATER = ("PYTHONUNBUFFERED", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_", "TORCH_NCCL_")


def is_read_at_load(variable: str) -> bool:
    """Return whether Python, torch or a library may read a variable when it is loaded, unseen by the warm parent."""
    return variable.startswith(_READ_AT_LOAD) and not variable.startswith(_READ_LATER)


class ForkedProcess:
    """A forked child of this process, with the part of subprocess.Popen's interface that `ChildProcesses` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self.returncode: int | None = None
        # The process is reaped, and signals are sent, under the lock: so no signal goes to another process of that ID.
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return -n after signal n, else the exit code; raise TimeoutExpired after `timeout`."""
        until = None if timeout is None else time.monotonic() + timeout
        while until is not None and self.poll() is None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_LOOK_SECONDS)
        with suppress(ChildProcessError):  # another thread has reaped it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        code = self.poll()
        assert code is not None
        return code

    def poll(self) -> int | None:
        """Return the exit code, None before the end."""
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # something else has reaped it
                    pid, status = self.pid, _LOST_STATUS
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with self._lock, suppress(ProcessLookupError):
                if self.returncode is None:
                    os.kill(self.pid, signum)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[bytes] | ForkedProcess


def begin(
    warm: WarmParent | None,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    streams: ChildStreams | None = None,
    directory: Path | None = None,
    new_session: bool = False,
) -> Process:
    """Fork a command of this Python from `warm`, or start it if there is none; arguments as for `WarmParent.fork`.

    The process gets the ends of `streams`, which are closed here; without `streams` it inherits ours.
    """
    with ExitStack() as failed, ExitStack() as ends:
        if streams is not None:
            failed.callback(streams.close)
            ends.callback(streams.close_ends)
        out, error = (None, None) if streams is None else streams.ends
        process: Process | None = None
        if warm is not None:
            warm.settle()
        if warm is not None and not warm.is_closed:
            given = {} if streams is None else dict(enumerate(streams.ends, STDOUT))
            forked = warm.fork(command, environ, given=given, directory=directory, new_session=new_session)
            if isinstance(forked, ForkedProcess):
                process = forked
            else:
                warm.give_up(forked)
        if process is None:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=error,
                env=dict(environ),
                cwd=directory,
                start_new_session=new_session,
            )
        failed.pop_all()
    if streams is not None:
        process.stdout, process.stderr = streams.stdout, streams.stderr
    return process


class WarmParent:
    """A process from which ranks are forked. This process adopts orphans from now on."""

    def __init__(self, process: Process, connection: socket.socket, said: str = "the ranks start") -> None:
        adopt_orphans()
        self._said = said
        self._process = process
        self._connection = connection
        self.pid = process.pid
        self.is_closed = False
        self._is_ready = False
        # Guards the connection, which is closed under it: a request and its answer are one step. It is held for the
        # seconds of the imports, and `close` kills the process first, which ends that wait.
        self._lock = threading.Lock()

    @classmethod
    def start(
        cls,
        environ: Mapping[str, str],
        *,
        python: str = sys.executable,
        command_bytes: int,
        environ_bytes: int = 16 << 10,
        is_tied: bool = True,
        said: str = "the ranks start",
    ) -> WarmParent:
        """Start one by this Python, with exactly these variables.

        The command of a rank is shown in `command_bytes`, and its variables in `environ_bytes` more than these take:
        both use the memory of the parent's own. With `is_tied` it ends with this thread. `said` begins a log line.
        """
        connection, theirs = socket.socketpair()
        program = "from smddp.process import warm_program as w; import sys; w.main(int(sys.argv[1]), int(sys.argv[2]))"
        words = [python, "-c", program, str(theirs.fileno()), str(int(is_tied)), " " * command_bytes]
        with theirs:
            process = subprocess.Popen(
                words, env={ROOM_VARIABLE: " " * environ_bytes, **environ}, pass_fds=[theirs.fileno()]
            )
        return cls(process, connection, said)

    @classmethod
    def inherited(cls) -> WarmParent | None:
        """Return the one that this program has because it was forked from another; None if it was started."""
        program: Any = sys.modules.get("smddp.process.warm_program")
        if program is None or program.own_parent is None:
            return None
        (connection, pid), program.own_parent = program.own_parent, None
        return cls(ForkedProcess(pid), connection)

    def prepare(
        self,
        directory: Path,
        *,
        modules: Sequence[str],
        extras: Sequence[str],
        environ: Mapping[str, str],
        of_ranks: Sequence[str] = (),
    ) -> None:
        """Let it import `modules`, and in a child `extras`, the script's own imports, with these variables.

        The programs have `directory` first in ``sys.path``. `of_ranks` are the variables that each rank has for itself.
        """
        self._is_ready = False
        self._send(
            {
                "modules": list(modules),
                "extras": list(extras),
                "directory": str(directory.resolve()),
                "environ": dict(environ),
                "of_ranks": list(of_ranks),
                "parent": os.getpid(),
            }
        )

    @property
    def is_ready(self) -> bool:
        """Whether the imports are done, as `await_ready` has heard."""
        return self._is_ready and not self.is_closed

    def await_ready(self, seconds: float | None = None) -> tuple[str, str]:
        """Wait for the imports. Return why no rank can be forked, and why none has the script's modules; else empty."""
        with self._lock:
            if self.is_closed:
                return _ENDED, ""
            if self._is_ready:
                return "", ""
            self._connection.settimeout(seconds)
            answer = self._read()
            self._is_ready = not answer["problem"]
            return answer["problem"], answer.get("note", "")

    def settle(self, seconds: float | None = None) -> None:
        """Wait for the imports, and log what can't be forked; end the parent if it can fork nothing."""
        problem, note = self.await_ready(seconds)
        if note:
            logger.info("the ranks import the script's packages themselves: %s", note)
        if problem:
            self.give_up(problem)

    def give_up(self, problem: str) -> None:
        """Log why nothing is forked, unless the parent was closed, and end it."""
        if not self.is_closed:
            logger.info("%s cold: %s", self._said, problem)
            self.close()

    def fork(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        given: Mapping[int, int] = MappingProxyType({}),
        directory: Path | None = None,
        new_session: bool = False,
        umask: int = -1,
    ) -> ForkedProcess | str:
        """Return a new process that runs a command of this Python, or why there is none.

        It gets copies of our descriptors `given`, by the numbers that they have there, and inherits the other standard
        streams. A program of smddp's has a warm parent of its own: see `inherited`.
        """
        request = {
            "command": list(command),
            "environ": dict(environ),
            "descriptors": list(given),
            "directory": str(directory or Path.cwd()),
            "new_session": new_session,
            "umask": umask,
        }
        with self._lock:
            if self.is_closed:
                return _ENDED
            waiting, go = os.pipe()
            try:
                self._connection.settimeout(_FORK_SECONDS)
                self._send(request, [waiting, *given.values()])
                os.close(waiting)
                answer = self._read()
                if answer["problem"]:
                    return str(answer["problem"])
                with suppress(BrokenPipeError):  # the new process was killed
                    os.write(go, b"\n")
            finally:
                os.close(go)  # without a word before: the new process ends
        return ForkedProcess(answer["pid"])

    def cancel(self) -> None:
        """Kill the parent, in a signal's handler too. Code that waits for the imports continues without the parent."""
        # Without the lock, which that code owns.
        self.is_closed = True
        self._process.kill()

    def close(self) -> None:
        """End the parent; its ranks live on."""
        self.cancel()
        with self._lock:
            self._connection.close()
        self._process.wait()

    def _send(self, content: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        data = json.dumps(content).encode() + b"\n"
        with suppress(OSError):  # it has ended; the answer tells so
            sent = socket.send_fds(self._connection, [data[:_PIECE_BYTES]], list(descriptors))
            self._connection.sendall(data[sent:])

    def _read(self) -> Any:
        data = b""
        with suppress(OSError):
            while not data.endswith(b"\n"):
                piece = self._connection.recv(_PIECE_BYTES)
                if not piece:
                    break
                data += piece
        return json.loads(data) if data.endswith(b"\n") else {"problem": _ENDED}
