"""A warm parent: a process that has imported what the ranks need, and from which they are forked in milliseconds.

It is a child of the process that starts the ranks, lives as long, and serves each attempt. Its program is
``smddp.process.warm_program``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from smddp.process.output_lines import ChildStreams

VARIABLE = "SMDDP_WARM"
"""``0`` starts each rank as a new Python."""
_ROOM_VARIABLE = "SMDDP_WARM_ROOM"
_ROOM_BYTES = 16 << 10
"""Room for the variables of a rank that its parent does not have: a rank's environment is shown in the same memory."""
_PIECE_BYTES = 1 << 16
_FORK_SECONDS = 20.0
"""Seconds in which a rank must be forked: the parent may be stopped, or its host may be out of memory."""


class ForkedProcess:
    """A forked child of this process, with the part of subprocess.Popen's interface that `ChildProcesses` uses."""

    def __init__(self, pid: int, stdout: IO[bytes] | None, stderr: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        # The process is reaped, and signals are sent, under the lock: so no signal goes to another process of that ID.
        self._lock = threading.Lock()

    def wait(self) -> int:
        """Wait for the end, and return -n after signal n, else the exit code."""
        with suppress(ChildProcessError):  # another thread has reaped it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        code = self.poll()
        assert code is not None
        return code

    def poll(self) -> int | None:
        """Return the exit code, None before the end."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with self._lock, suppress(ProcessLookupError):
                if self.returncode is None:
                    os.kill(self.pid, signum)


class WarmParent:
    """Starts the program with exactly the variables `environ`, from which ranks with `command` are forked.

    It imports `modules`, and in a child `extras`, the script's own imports. `of_ranks` are the variables that each rank
    has for itself. This process must adopt orphans.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        modules: Sequence[str],
        extras: Sequence[str],
        environ: Mapping[str, str],
        of_ranks: Sequence[str] = (),
    ) -> None:
        self._connection, theirs = socket.socketpair()
        program = "from smddp.process import warm_program as w; import sys; w.main(int(sys.argv[1]))"
        words = [
            sys.executable,
            "-c",
            program,
            str(theirs.fileno()),
            " " * sum(len(os.fsencode(each)) + 1 for each in command),
        ]
        with theirs:
            self._process = subprocess.Popen(
                words,
                env={_ROOM_VARIABLE: " " * _ROOM_BYTES, **environ},
                pass_fds=[theirs.fileno()],
            )
        self.pid = self._process.pid
        self._is_ready = False
        self._lock = threading.Lock()
        self._send(
            {
                "modules": list(modules),
                "extras": list(extras),
                "directory": str(Path(command[1]).resolve().parent),
                "of_ranks": list(of_ranks),
                "parent": os.getpid(),
                "room": _ROOM_VARIABLE,
            }
        )

    def await_ready(self) -> tuple[str, str]:
        """Wait for the imports. Return why no rank can be forked, and why none has the script's modules; else empty."""
        with self._lock:
            answer = {"problem": "", "note": ""} if self._is_ready else self._read()
            self._is_ready = not answer["problem"]
            return answer["problem"], answer.get("note", "")

    def fork(
        self, command: Sequence[str], environ: Mapping[str, str], streams: ChildStreams | None
    ) -> ForkedProcess | str:
        """Return a new rank, or why there is none; without `streams` it inherits ours. The caller closes their ends."""
        with self._lock:
            self._connection.settimeout(_FORK_SECONDS)
            ends = [] if streams is None else streams.ends
            self._send({"command": list(command), "environ": dict(environ)}, ends)
            answer = self._read()
            if answer["problem"]:
                return str(answer["problem"])
            stdout, stderr = (None, None) if streams is None else (streams.stdout, streams.stderr)
            return ForkedProcess(answer["pid"], stdout, stderr)

    def close(self) -> None:
        """End the parent; its ranks live on."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

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
        return (
            json.loads(data) if data.endswith(b"\n") else {"problem": "the warm parent has ended, or does not answer"}
        )
