"""The program of a warm parent: it imports the modules that programs need, and forks a process for each program.

1. It imports the common modules. A child then imports the script's own modules, too, and serves in its place. A child
   that can't be forked from ends, and the first process serves without the script's modules.
2. A process can be forked from if no thread is left after a fork, and the imports opened no file and no GPU, and read
   no variable that differs between ranks. A program is not forked if it has another value of a variable that an import
   read, or if an imported file has changed.
3. A program is forked twice, so it is an orphan. The process that requested it adopts orphans, and becomes its parent.
   The program begins once the requester knows its process ID, and ends if the requester is gone: nothing runs twice.
4. A program takes over its streams, environment, arguments and signals, runs as ``__main__``, and ends as Python does.
   Only the modules are left to the kernel: freeing them would copy the memory that all programs share.
5. A program of smddp's own that starts others, such as a launcher, can be forked, too. Before it runs, it forks a copy
   of itself as its own warm parent.
"""

from __future__ import annotations

import array
import atexit
import builtins
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from smddp.process.output_lines import STDERR, STDOUT
from smddp.process.warm_imports import WarmImports, end_with_parent, hidden_by
from smddp.process.warm_parent import ROOM_VARIABLE

_PACKAGE = "smddp"
_SET_NAME = 15  # linux/prctl.h
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SIGNALS = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
_ARGUMENTS, _ENVIRONMENT = (45, 46), (47, 48)
"""Begin and end of their memory: fields of /proc/self/stat, from 0 after the name."""
_PIECE_BYTES = 1 << 20
_LOOK_SECONDS = 0.0002
_MOST_PASSED = 16
"""Limit of descriptors in one request."""
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_LOST_OUTPUT = 120
"""Python's own exit code if output could not be written."""


own_parent: tuple[socket.socket, int] | None = None
"""The connection to this program's own warm parent, and its process ID; None without one."""


@dataclass(frozen=True, slots=True)
class _Program:
    """The program that a forked process becomes."""

    command: Sequence[str]
    """The interpreter, then a script or ``-m MODULE``, then arguments."""
    environ: Mapping[str, str]
    descriptors: Mapping[int, int] = field(default_factory=dict)
    """The received descriptors, by their numbers in the program. It inherits the other streams."""
    directory: str = "."
    new_session: bool = False
    umask: int = -1
    """-1 keeps the warm parent's."""

    @property
    def is_own(self) -> bool:
        """Whether this is smddp's own program, such as a launcher: it imports little, and starts others."""
        return self.command[1] == "-m" and self.command[2].startswith(f"{_PACKAGE}.")

    @property
    def imported(self) -> Sequence[str]:
        """The modules to run that this process has imported already. Other modules may refer to them."""
        names = (self.command[2], f"{self.command[2]}.__main__") if self.command[1] == "-m" else ()
        return [name for name in names if name in sys.modules]


_imports: WarmImports
_handlers: dict[int, Any]
"""The handlers from before `_outlive_signals`, which a program gets back."""


def main(descriptor: int, is_tied: int) -> None:
    """Serve the process at the other end of this socket; in each forked process, become its program.

    With `is_tied`, the serving process ends with the thread that started it.
    """
    global _imports, _handlers
    if is_tied:
        end_with_parent()
    _handlers = _outlive_signals()
    os.environ.pop(ROOM_VARIABLE, None)
    _imports = WarmImports()
    _become(_serve(socket.socket(fileno=descriptor)))


def why_not_execute(environ: Mapping[str, str]) -> str:
    """Return why a command with these variables must be started anew; empty if `execute` can run it."""
    return _imports.why_not_for(environ)


def execute(command: Sequence[str], environ: Mapping[str, str], *, begun: int) -> NoReturn:
    """Run a command of this Python in this forked process, as exec would.

    The descriptor `begun` is closed when the command begins.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does when it starts
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208, as a start of a program does
        with suppress(OSError):  # the list's own
            if int(name) not in (*range(STDERR + 1), begun) and not os.get_inheritable(int(name)):
                os.close(int(name))
    _become(_Program(command, environ), begun)


def _outlive_signals() -> dict[int, Any]:
    """Let signals have no effect, and return the handlers before: a stop of a process group is for the ranks.

    Unlike SIG_IGN, a handler is not inherited through exec.
    """
    return {int(number): signal.signal(number, _outlive) for number in _HANDLED}


def _outlive(_signal_number: int, _frame: object) -> None:
    """Do nothing."""


def _prepare(order: Mapping[str, Any], connection: socket.socket) -> None:
    """Import the requested modules, and answer whether programs can be forked."""
    problem, note = "this Python is not a child of the process that started it", ""
    if os.getppid() == order["parent"]:
        problem, note = _imports.prepare(order["modules"], order["extras"], order["environ"], order["of_ranks"])
    for directory in [order["directory"], *_imports.search(order["environ"].get("PYTHONPATH", ""))]:
        problem = problem or hidden_by(Path(directory))
    _answer(connection, {"problem": problem, "note": note})
    _imports.keep_stamps()
    gc.freeze()  # the garbage collector would copy shared memory


def _receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Return a request and its descriptors; end this process if the other end is closed."""
    descriptors, data = array.array("i"), b""
    with suppress(ConnectionResetError):  # the other end was closed before it had read the last answer
        data, ancillary, _, _ = connection.recvmsg(_PIECE_BYTES, socket.CMSG_SPACE(_MOST_PASSED * descriptors.itemsize))
        for _, _, content in ancillary:
            descriptors.frombytes(content)
        while data and not data.endswith(b"\n"):
            piece = connection.recv(_PIECE_BYTES)
            data = data + piece if piece else b""
    if not data.endswith(b"\n"):
        os._exit(0)
    return json.loads(data), list(descriptors)


def _answer(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    """Send an answer; end this process if the other end is closed."""
    try:
        connection.sendall(json.dumps(answer).encode() + b"\n")
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


def _serve(connection: socket.socket) -> _Program:
    """Answer requests; return only in a forked process, with its program."""
    while True:
        content, received = _receive(connection)
        if "modules" in content:
            _prepare(content, connection)
            continue
        go, *passed = received
        program = _Program(**{**content, "descriptors": dict(zip(content["descriptors"], passed, strict=True))})
        # Blocked: the handlers of this process would swallow a signal to a new program.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        problem = _imports.why_not_for(program.environ)
        if program.imported and not program.is_own:
            problem = f"an import has imported {program.imported[0]}, which the ranks run"
        pid = -1 if problem else _fork_twice()
        if pid == 0:
            connection.close()
            if not os.read(go, 1):  # the requester is gone, and may start the program anew
                os._exit(0)
            os.close(go)
            return program
        if pid < 0:
            problem = problem or "this host can't fork a process"
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for descriptor in received:
            os.close(descriptor)
        _answer(connection, {"pid": pid, "problem": problem})


def _fork_twice() -> int:
    """Fork an orphan: return its process ID here and 0 in the orphan, or -1 if this host can't fork."""
    told, telling = os.pipe()
    if first := os.fork():
        os.close(telling)
        os.waitpid(first, 0)  # from now on the orphan has its new parent
        with os.fdopen(told, "rb") as pipe:
            return int(pipe.read() or -1)
    first = os.getpid()
    try:
        second = os.fork()
        if second:
            os.write(telling, str(second).encode())
    except OSError:  # no process or no memory is left
        second = -1
    if second:
        os._exit(0)
    os.close(told)
    os.close(telling)
    while os.getppid() == first:  # it ends at once, and the program must see its new parent
        time.sleep(_LOOK_SECONDS)
    return 0


def _become(program: _Program, begun: int | None = None) -> NoReturn:
    """Make this process what a start would make it, close `begun`, run the program, and end."""
    global own_parent
    above = max(program.descriptors, default=STDERR) + 1  # no copy may have a number that the program needs
    kept = {number: fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for number, each in program.descriptors.items()}
    for each in program.descriptors.values():
        os.close(each)
    for number, each in kept.items():
        os.dup2(each, number)
        os.close(each)
    # The last first: a rank's own, by which others find it, must fit even if the memory is too small for all.
    _show(_ENVIRONMENT, [f"{name}={value}" for name, value in reversed(list(program.environ.items()))])
    _show(_ARGUMENTS, program.command)
    os.environ.clear()
    # What imports set and made is only for programs that would import the same.
    os.environ.update(program.environ if program.is_own else _imports.applied_to(program.environ))
    ctypes.CDLL(None).prctl(_SET_NAME, Path(program.command[0]).name.encode(), 0, 0, 0)
    if program.new_session:
        os.setsid()
    if program.umask >= 0:
        os.umask(program.umask)
    os.chdir(program.directory)
    if not program.is_own:
        _imports.make_directories()
    unbuffered = bool(program.environ.get("PYTHONUNBUFFERED"))
    for number, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
        _open_stream(number, name, unbuffered=unbuffered)
    _forget()
    own_parent = _leave_copy(begun) if program.is_own else None
    for number, handler in _handlers.items():
        if signal.getsignal(number) is _outlive:  # else an import has set its own
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    if begun is not None:
        os.close(begun)
    for name in program.imported:
        del sys.modules[name]  # else there are two
    _end(_run(program.command))


def _forget() -> None:
    """Renew the random numbers and the cached facts that imports took for their own process."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        processes: Any = sys.modules["multiprocessing.process"]
        processes.current_process().authkey = os.urandom(32)  # the key of a manager
        processes.ORIGINAL_DIR = str(Path.cwd())
    platform: Any = sys.modules.get("platform")
    if hasattr(platform, "_uname_cache"):
        platform._uname_cache = None  # noqa: SLF001, a host has its own name
    importlib.invalidate_caches()  # directories may exist here only


def _leave_copy(begun: int | None) -> tuple[socket.socket, int]:
    """Fork a copy as this process's warm parent, and return the connection and the process ID."""
    ours, theirs = socket.socketpair()
    if copied := os.fork():
        theirs.close()
        return ours, copied
    try:
        ours.close()
        if begun is not None:
            os.close(begun)
        end_with_parent()
        _outlive_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        _become(_serve(theirs))
    finally:  # the caller must not continue in two processes
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _open_stream(number: int, name: str, *, unbuffered: bool) -> None:
    """Open ``sys.stdout`` or ``sys.stderr`` as Python does at its start."""
    before = getattr(sys, f"__{name}__")
    if before is None:
        return
    binary = io.FileIO(number, "wb", closefd=False)
    binary.name = f"<{name}>"
    text = io.TextIOWrapper(
        binary if unbuffered else io.BufferedWriter(binary),
        before.encoding,
        before.errors,
        newline="\n",
        line_buffering=not unbuffered and (number == STDERR or binary.isatty()),
        write_through=unbuffered,
    )
    text.mode = "w"  # type: ignore[misc]
    setattr(sys, name, text)
    setattr(sys, f"__{name}__", text)


def _show(fields: tuple[int, int], texts: Sequence[str]) -> None:
    """Write the texts where /proc shows the arguments or the environment, by which others find a rank."""
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    first, last = (int(stat[field]) for field in fields)
    block = b"".join(os.fsencode(each) + b"\0" for each in texts)[: last - first]
    ctypes.memmove(first, block.ljust(last - first, b"\0"), last - first)


def _run(command: Sequence[str]) -> int:
    """Run a script or a module as ``__main__``, and return the exit code; show an error as Python does."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    vars(main)["__builtins__"] = builtins
    sys.argv, sys.orig_argv = list(command[1:]), list(command)
    is_module = command[1] == "-m"
    path = os.path.abspath(command[1])  # noqa: PTH100, symbolic links stay
    sys.path[:] = _imports.path
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.realpath(path)))  # noqa: PTH109, PTH120
    try:
        if is_module:
            sys.argv = ["-m", *command[3:]]
            runpy._run_module_as_main(command[2])  # type: ignore[attr-defined]  # noqa: SLF001, what ``python -m`` calls
            return 0
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        vars(main).update(__file__=path, __loader__=loader, __cached__=None)
        exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(main))  # noqa: S102
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)  # noqa: T201
        return 1
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(code: int) -> NoReturn:
    """End as Python does: threads, exit functions, the script's own objects, files and streams."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    if threading.active_count() == 1:  # a daemon thread that runs on would miss the names
        vars(sys.modules["__main__"]).clear()
        gc.collect()
    for each in gc.get_objects():  # not those of the imports
        # By its type: isinstance asks a proxy, whose object may be gone.
        if issubclass(type(each), _FILES) and each is not sys.stdout:
            with suppress(OSError, ValueError):
                each.flush()
    if not all([_flushes(sys.stdout), _flushes(sys.stderr)]):
        code = _LOST_OUTPUT
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _flushes(stream: Any) -> bool:
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n")
        return False
    return True
