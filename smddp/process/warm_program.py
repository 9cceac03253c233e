"""The program of a warm parent: it imports what the ranks need, and forks each rank that it is asked for.

1. It imports the common modules. A child then imports the script's own ones, too, and serves in its place. If that
   child could not be forked from, it ends, and the first process serves without these modules.
2. A process can be forked from if no thread is left after a fork, and the imports opened no file and no GPU, and read
   no variable that each rank has for itself. A rank for which another variable differs that was read is not forked.
3. A rank is forked twice. So it is an orphan, and the process that asked for it, which adopts orphans, is its parent.
4. A rank takes over its streams, environment, arguments and signals, runs the script as ``__main__``, and ends as
   Python does. Only the modules are left to the kernel: to free them is to copy what all ranks share.
"""

from __future__ import annotations

import array
import atexit
import builtins
import ctypes
import gc
import importlib
import importlib.machinery
import io
import json
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from smddp.process.output_lines import STDERR, STDOUT

_SET_PARENT_DEATH_SIGNAL, _SET_NAME = 1, 15  # linux/prctl.h
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SIGNALS = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
_ARGUMENTS, _ENVIRONMENT = (45, 46), (47, 48)
"""The first and the last address of that memory: fields of /proc/self/stat, from 0 behind the name."""
_PIECE_BYTES = 1 << 20
_LOOK_SECONDS = 0.0002
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_LOST_OUTPUT = 120
"""Python's own exit code if output could not be written."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """What a rank is to become."""

    command: Sequence[str]
    """Python, and the script with its arguments."""
    environ: Mapping[str, str]
    streams: Sequence[int]
    """The descriptors of standard output and standard error; none if it inherits them."""


class _Reads:
    """The environment variables that imports have read, each with the module that was imported."""

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}

    @contextmanager
    def of(self, module: str) -> Iterator[None]:
        """Note what is read in a block."""
        read = os._Environ.__getitem__  # noqa: SLF001, nothing else sees all reads

        def note_and_read(environ: Any, name: Any) -> Any:
            self.by_name.setdefault(os.fsdecode(name) if isinstance(name, bytes) else str(name), module)
            return read(environ, name)

        os._Environ.__getitem__ = note_and_read  # type: ignore[method-assign]  # noqa: SLF001
        try:
            yield
        finally:
            os._Environ.__getitem__ = read  # type: ignore[method-assign]  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class _Before:
    """What this process was before the imports."""

    environ: Mapping[str, str]
    files: frozenset[str]
    """What its descriptors opened."""
    of_ranks: frozenset[str]
    """Variables that each rank has for itself, and this process has not."""
    handlers: Mapping[int, Any]
    """The handlers of the signals that this process handles, as a rank gets them."""


def main(descriptor: int) -> None:
    """Import, serve the process at the other end of this socket, and become each rank that is forked."""
    _end_with_parent()
    # A stop of the whole process group is for the ranks. Unlike SIG_IGN, a handler is not inherited through exec.
    handlers = {int(number): signal.signal(number, _outlive) for number in _HANDLED}
    connection = socket.socket(fileno=descriptor)
    files = frozenset(_open_files())
    order, _ = _receive(connection)
    os.environ.pop(order["room"])
    before = _Before(dict(os.environ), files, frozenset(order["of_ranks"]), handlers)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # of ``python -c``; a rank has its script's directory there
    reads = _Reads()
    problem = _import(order["modules"], reads, before)
    if os.getppid() != order["parent"]:
        problem = "this Python is not a child of the process that started it"
    note = ""
    if order["extras"] and not problem:
        note = _leave_to_child(order["extras"], reads, before)
    _answer(connection, {"problem": problem or _hidden_by(Path(order["directory"])), "note": note})
    gc.freeze()  # the garbage collector would copy what is shared
    rank = _serve(connection, before, reads)
    connection.close()
    _become(rank, before)
    _end(_run(rank.command))


def _outlive(_signal_number: int, _frame: object) -> None:
    """Do nothing."""


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _import(modules: Sequence[str], reads: _Reads, before: _Before) -> str:
    """Import, and return why a fork of this process would now differ from a start; empty if it would not."""
    for module in modules:
        with reads.of(module), suppress(Exception):  # the script's own import shows the error
            importlib.import_module(module)
        if read := sorted(before.of_ranks & reads.by_name.keys()):
            return f"the import of {module} reads {read[0]}, which each rank has for itself"
    return _why_not_forked(before.files)


def _leave_to_child(extras: Sequence[str], reads: _Reads, before: _Before) -> str:
    """Fork a child that imports these modules and serves in this process's place.

    Return an empty text there, and here the reason why it can't serve.
    """
    told, telling = os.pipe()
    if child := os.fork():
        os.close(telling)
        with os.fdopen(told, "rb") as pipe:
            problem = pipe.read().decode()
        os.waitpid(child, 0)
        if not problem:
            os._exit(0)
        return problem
    os.close(told)
    _end_with_parent()
    pipe_of_child = f"pipe:[{os.fstat(telling).st_ino}]"
    if problem := _import(extras, reads, replace(before, files=before.files | {pipe_of_child})):
        os.write(telling, problem.encode())
        os._exit(0)
    os.close(telling)
    return ""


def _open_files() -> list[str]:
    names = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208, this must start fast: no pathlib
        with suppress(OSError):  # the list's own
            names.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
    return names


def _why_not_forked(files: Collection[str]) -> str:
    """Return why a fork of this process would differ from a start by threads or files; `files` were open before."""
    if opened := sorted(set(_open_files()) - set(files)):
        return f"an import opened {opened[0]}"
    # Threads of OpenBLAS end before a fork, and begin again when they are needed.
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    threads = [each for each in os.listdir("/proc/self/task") if int(each) != os.getpid()]  # noqa: PTH208
    if not threads:
        return ""
    try:
        name = Path(f"/proc/self/task/{threads[0]}/comm").read_text().strip()
    except OSError:
        name = "unknown"
    return f"an import started a thread, {name}"


def _hidden_by(directory: Path) -> str:
    """Return which imported module a file in the script's directory would replace; empty if there is none."""
    with suppress(OSError):  # what can't be listed is imported by its name only
        for name in sorted(os.listdir(directory)):  # noqa: PTH208, a network file system is asked once
            module = sys.modules.get(name.partition(".")[0])
            if module is None or name == "__main__.py":
                continue
            entry = directory / name
            here = getattr(module, "__file__", None)
            if here is not None and Path(here).is_relative_to(directory.resolve()):
                continue
            if entry.suffix in (".py", ".so") or (entry / "__init__.py").is_file():
                return f"{name} beside the script replaces the module {name.partition('.')[0]}"
    return ""


def _receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Return a request and its descriptors; end this process if the other end is closed."""
    descriptors = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(_PIECE_BYTES, socket.CMSG_SPACE(2 * descriptors.itemsize))
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    while data and not data.endswith(b"\n"):
        piece = connection.recv(_PIECE_BYTES)
        data = data + piece if piece else b""
    if not data:
        os._exit(0)
    return json.loads(data), list(descriptors)


def _answer(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def _serve(connection: socket.socket, before: _Before, reads: _Reads) -> _Rank:
    """Fork what is asked for; return in each rank only."""
    while True:
        content, streams = _receive(connection)
        rank = _Rank(content["command"], content["environ"], streams)
        # Blocked: the handlers of this process would swallow a signal to a new rank.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        problem = _why_not_warm(rank.environ, before.environ, reads)
        pid = -1 if problem else _fork_twice()
        if pid == 0:
            return rank
        if pid < 0:
            problem = problem or "this host can't fork a process"
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for stream in streams:
            os.close(stream)
        _answer(connection, {"pid": pid, "problem": problem})


def _why_not_warm(environ: Mapping[str, str], own: Mapping[str, str], reads: _Reads) -> str:
    for name, module in reads.by_name.items():
        if environ.get(name) != own.get(name):
            return f"the import of {module} reads {name}, which differs from rank to rank"
    return ""


def _fork_twice() -> int:
    """Return the process ID of an orphan of this process, and 0 in it; -1 if this host can't start a process."""
    told, telling = os.pipe()
    if first := os.fork():
        os.close(telling)
        os.waitpid(first, 0)  # from now on the rank has its new parent
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
    while os.getppid() == first:  # it ends at once; what a rank reads of its parent must be true
        time.sleep(_LOOK_SECONDS)
    return 0


def _become(rank: _Rank, before: _Before) -> None:
    """Take over the streams, environment, arguments and signals of the rank, as a start would give them."""
    for number, stream in enumerate(rank.streams, 1):
        if stream != number:
            os.dup2(stream, number)
            os.close(stream)
    _show(_ENVIRONMENT, [f"{name}={value}" for name, value in rank.environ.items()])
    _show(_ARGUMENTS, rank.command)
    imported = dict(os.environ)
    os.environ.clear()
    # What an import sets or removes, it would in each rank.
    changed = {name: value for name, value in imported.items() if before.environ.get(name) != value}
    removed = before.environ.keys() - imported.keys()
    os.environ.update({name: value for name, value in {**rank.environ, **changed}.items() if name not in removed})
    ctypes.CDLL(None).prctl(_SET_NAME, Path(rank.command[0]).name.encode(), 0, 0, 0)
    unbuffered = bool(rank.environ.get("PYTHONUNBUFFERED"))
    for number, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
        _open_stream(number, name, unbuffered=unbuffered)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # it has drawn its seed at the import
    for number, handler in before.handlers.items():
        if signal.getsignal(number) is _outlive:  # else an import has set its own
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


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
    """Write the texts where /proc shows the arguments or the environment: others find a rank by them."""
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    first, last = (int(stat[field]) for field in fields)
    block = b"".join(os.fsencode(each) + b"\0" for each in texts)[: last - first]
    ctypes.memmove(first, block.ljust(last - first, b"\0"), last - first)


def _run(command: Sequence[str]) -> int:
    """Run a script as ``__main__``, and return the exit code; show an error as Python does."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv, sys.orig_argv = list(command[1:]), list(command)
    path = os.path.abspath(command[1])  # noqa: PTH100, symbolic links stay
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
    try:
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
