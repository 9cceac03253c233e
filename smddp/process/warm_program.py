"""The program of a warm parent: it imports what the ranks need, and forks each rank that it is asked for.

1. It imports the common modules. A child then imports the script's own ones, too, and serves in its place. If that
   child could not be forked from, it ends, and the first process serves without these modules.
2. A process can be forked from if no thread is left after a fork, and the imports opened no file and no GPU. What the
   imports read from the environment is noted: a rank for which such a variable differs is not forked.
3. A rank is forked twice. So it is an orphan, and the process that asked for it, which adopts orphans, is its parent.
4. A rank takes over its streams, environment, arguments and signals, runs the script as ``__main__``, and ends as
   Python does. Only the modules are left to the kernel: to free them is to copy what all ranks share.
"""

from __future__ import annotations

import array
import atexit
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from smddp.process.output_lines import STDERR, STDOUT

_SET_PARENT_DEATH_SIGNAL, _SET_NAME = 1, 15  # linux/prctl.h
_SIGNALS = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
_ARGUMENTS, _ENVIRONMENT = (45, 46), (47, 48)
"""The first and the last address of that memory: fields of /proc/self/stat, from 0 behind the name."""
_PIECE_BYTES = 1 << 20
_LOOK_SECONDS = 0.0002
_LOST_OUTPUT = 120
"""Python's own exit code if output could not be written."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """What a rank is to become."""

    command: Sequence[str]
    """Python, and the script with its arguments, or ``-m`` and the module."""
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


def main(descriptor: int) -> None:
    """Import, serve the process at the other end of this socket, and become each rank that is forked."""
    _end_with_parent()
    # A stop of the whole process group is for the ranks. Unlike SIG_IGN, a handler is not inherited through exec.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    connection = socket.socket(fileno=descriptor)
    files = set(_open_files())
    order, _ = _receive(connection)
    os.environ.pop(order["room"])
    environ = dict(os.environ)
    sys.path.pop(0)  # of ``python -c``; a rank has its script's directory there
    reads = _Reads()
    _import(order["modules"], reads)
    problem = _why_not_forked(files)
    if os.getppid() != order["parent"]:
        problem = "this Python is not a child of the process that started it"
    note = ""
    if order["extras"] and not problem:
        note = _leave_to_child(order["extras"], reads, files)
    _answer(connection, {"problem": problem or _hidden_by(Path(order["directory"])), "note": note})
    gc.freeze()  # the garbage collector would copy what is shared
    rank = _serve(connection, environ, reads)
    connection.close()
    _become(rank)
    _end(_run(rank.command[1:]))


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _import(modules: Sequence[str], reads: _Reads) -> None:
    for module in modules:
        with reads.of(module), suppress(Exception):  # the script's own import shows the error
            importlib.import_module(module)


def _leave_to_child(extras: Sequence[str], reads: _Reads, files: set[str]) -> str:
    """Return in the process that serves: a child with these modules, or this process, with why there is none."""
    told, telling = os.pipe()
    if child := os.fork():
        os.close(telling)
        with os.fdopen(told, "rb") as pipe:
            problem = pipe.read().decode()
        if not problem:
            os.waitpid(child, 0)
            os._exit(0)
        os.waitpid(child, 0)
        return problem
    os.close(told)
    _end_with_parent()
    _import(extras, reads)
    if problem := _why_not_forked(files | {f"pipe:[{os.fstat(telling).st_ino}]"}):
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


def _why_not_forked(files: set[str]) -> str:
    """Return why a fork of this process would differ from a start; empty if it would not. `files` were open before."""
    if opened := sorted(set(_open_files()) - files):
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
    """Return which imported module the script's directory replaces: a start would import the one there."""
    for entry in sorted(directory.iterdir()):
        name = entry.name.partition(".")[0]
        module = sys.modules.get(name)
        is_module = entry.suffix in (".py", ".so") or (entry / "__init__.py").is_file()
        if module is None or not is_module or name == "__main__":
            continue
        here = getattr(module, "__file__", None)
        if here is None or not Path(here).is_relative_to(directory.resolve()):
            return f"{entry.name} beside the script replaces the module {name}"
    return ""


def _receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Return a request and its descriptors; end this process if the other end is closed."""
    descriptors = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(_PIECE_BYTES, socket.CMSG_SPACE(2 * descriptors.itemsize))
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    while data and not data.endswith(b"\n"):
        data += connection.recv(_PIECE_BYTES)
    if not data:
        os._exit(0)
    return json.loads(data), list(descriptors)


def _answer(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def _serve(connection: socket.socket, environ: Mapping[str, str], reads: _Reads) -> _Rank:
    """Fork what is asked for; return in each rank only."""
    while True:
        content, streams = _receive(connection)
        rank = _Rank(content["command"], content["environ"], streams)
        # Blocked: the handlers of this process would swallow a signal to a new rank.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        problem = _why_not_warm(rank.environ, environ, reads)
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


def _become(rank: _Rank) -> None:
    """Take over the streams, environment, arguments and signals of the rank, as a start would give them."""
    for number, stream in enumerate(rank.streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(rank.environ)
    _show(_ENVIRONMENT, [f"{name}={value}" for name, value in rank.environ.items()])
    _show(_ARGUMENTS, rank.command)
    ctypes.CDLL(None).prctl(_SET_NAME, Path(rank.command[0]).name.encode(), 0, 0, 0)
    unbuffered = bool(rank.environ.get("PYTHONUNBUFFERED"))
    for number, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
        before = getattr(sys, f"__{name}__")
        if before is None:
            continue
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
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # it has drawn its seed at the import
    for number in _SIGNALS:
        if number not in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", None)) and signal.getsignal(number) is not None:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _show(fields: tuple[int, int], texts: Sequence[str]) -> None:
    """Write the texts where /proc shows the arguments or the environment: others find a rank by them."""
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    first, last = (int(stat[field]) for field in fields)
    block = b"".join(os.fsencode(each) + b"\0" for each in texts)[: last - first]
    ctypes.memmove(first, block.ljust(last - first, b"\0"), last - first)


def _run(words: Sequence[str]) -> int:
    """Run a script, or ``-m`` and a module, as ``__main__``, and return the exit code; show an error as Python does."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        if words[0] == "-m":
            import runpy

            sys.argv = ["-m", *words[2:]]
            sys.path.insert(0, str(Path.cwd()))
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # noqa: SLF001, as ``python -m`` does
        else:
            sys.argv = list(words)
            path = os.path.abspath(words[0])  # noqa: PTH100, symbolic links stay
            sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
            loader = importlib.machinery.SourceFileLoader("__main__", path)
            vars(main).update(__file__=path, __loader__=loader, __builtins__=__builtins__, __cached__=None)
            exec(compile(Path(path).read_bytes(), path, "exec"), vars(main))  # noqa: S102
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)  # noqa: T201
        return 1
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            traceback = traceback.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(code: int) -> NoReturn:
    """End as Python does: threads, exit functions, the script's own objects, streams."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    vars(sys.modules["__main__"]).clear()
    gc.collect()
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


if __name__ == "__main__":
    main(int(sys.argv[1]))
