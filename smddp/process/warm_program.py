"""The program of a warm parent: it imports what the ranks need, and forks each rank that it is asked for.

1. It imports the common modules. A child then imports the script's own ones, too, and serves in its place. If that
   child could not be forked from, it ends, and the first process serves without these modules.
2. A process can be forked from if no thread is left after a fork, and the imports opened no file and no GPU, and read
   no variable that each rank has for itself. A rank is not forked if a variable that was read has another value for it,
   or if an imported file has changed.
3. A rank is forked twice. So it is an orphan, and the process that asked for it, which adopts orphans, is its parent.
4. A rank takes over its streams, environment, arguments and signals, runs the script as ``__main__``, and ends as
   Python does. Only the modules are left to the kernel: to free them is to copy what all ranks share.
5. A program that starts ranks itself, such as a launcher, can be forked, too. Before it runs, it leaves a copy of
   itself, which is its own warm parent.
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
import tempfile
import threading
import time
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from smddp.process.output_lines import STDERR, STDOUT
from smddp.process.warm_parent import ROOM_VARIABLE, is_read_at_load

_SET_PARENT_DEATH_SIGNAL, _SET_NAME = 1, 15  # linux/prctl.h
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SIGNALS = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
_ARGUMENTS, _ENVIRONMENT = (45, 46), (47, 48)
"""The first and the last address of that memory: fields of /proc/self/stat, from 0 behind the name."""
_PIECE_BYTES = 1 << 20
_LOOK_SECONDS = 0.0002
_OF_STARTS = ("sitecustomize", "usercustomize")
"""Modules that Python imports when it starts."""
_MOST_PASSED = 16
"""Descriptors with a request."""
_HIGH = 256
"""Above the numbers that received descriptors get."""
_FILES_SECONDS = 1.0
"""Seconds in which imported files are compared with what they were once: there are thousands."""
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_LOST_OUTPUT = 120
"""Python's own exit code if output could not be written."""


copy: tuple[socket.socket, int] | None = None
"""The connection to this program's own warm parent, and its process ID; None without one."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """What a fork is to become."""

    command: Sequence[str]
    """Python; a script, or -m and a module; arguments."""
    environ: Mapping[str, str]
    descriptors: Mapping[int, int] = field(default_factory=dict)
    """What was received, by the number that it gets; the rank inherits the others."""
    directory: str = "."
    new_session: bool = False
    umask: int = -1
    """-1: that of its warm parent."""
    is_copied: bool = False
    """Whether it gets a warm parent of its own."""


class _Imports:
    """What this process has imported, and what that did."""

    def __init__(self, handlers: Mapping[int, Any]) -> None:
        self.handlers = handlers
        """The handlers of the signals that a warm parent handles, as a rank gets them."""
        self.path = list(sys.path)
        self._searched = os.environ.get("PYTHONPATH", "")
        self._began = time.time_ns()
        self._at_load = dict(os.environ)
        """Variables when the program began."""
        self._reads: dict[str, tuple[str, str | None]] = {}
        """The module that was imported when an environment variable was read first, and the value; by its name."""
        self._changes: dict[str, str | None] = {}
        """What imports made of environment variables."""
        self._files: dict[str, tuple[int, int] | None] = {}
        self._looked_at = 0.0

    def search(self, pythonpath: str) -> list[str]:
        """Put the directories of PYTHONPATH first, as a start does, in place of those before, and return them."""
        before, after = _directories(self._searched), _directories(pythonpath)
        if self.path[: len(before)] == before:
            self.path[: len(before)] = after
        else:
            self.path[:0] = after
        is_new = pythonpath != self._searched
        self._searched = pythonpath
        return after if is_new else []

    @contextmanager
    def of(self, module: str) -> Iterator[None]:
        """Note what is read and changed in a block."""
        read = os._Environ.__getitem__  # noqa: SLF001, nothing else sees all reads
        before = dict(os.environ)

        def note_and_read(environ: Any, name: Any) -> Any:
            text = os.fsdecode(name) if isinstance(name, bytes) else str(name)
            self._reads.setdefault(text, (module, before.get(text)))
            return read(environ, name)

        os._Environ.__getitem__ = note_and_read  # type: ignore[method-assign]  # noqa: SLF001
        try:
            yield
        finally:
            os._Environ.__getitem__ = read  # type: ignore[method-assign]  # noqa: SLF001
            after = dict(os.environ)
            changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
            self._changes.update({name: after.get(name) for name in changed})

    def read(self, names: Collection[str]) -> str | None:
        """Return which of these variables an import has read first."""
        return min(self._reads.keys() & set(names), default=None)

    def keep_stamps(self) -> None:
        """Remember what the imported files are now."""
        for module in list(sys.modules.values()):
            if isinstance(path := getattr(module, "__file__", None), str) and path not in self._files:
                stamp = _stamp(path)
                # A file that changed meanwhile may be imported as it was.
                self._files[path] = stamp if stamp is None or stamp[0] < self._began else (0, 0)

    def applied_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a program after these imports."""
        return {name: value for name, value in {**environ, **self._changes}.items() if value is not None}

    def why_not_for(self, environ: Mapping[str, str]) -> str:
        """Return why a program with these variables must be started, and not forked; empty if it need not."""
        for name in sorted(self._at_load.keys() | environ.keys()):
            if is_read_at_load(name) and environ.get(name) != self._at_load.get(name):
                return f"libraries read {name} when they are loaded, and it differs"
        if environ.get("PYTHONPATH", "") != self._searched:
            return "PYTHONPATH differs"
        for name, (module, value) in self._reads.items():
            if name != "PYTHONPATH" and environ.get(name) != value:
                return f"the import of {module} reads {name}, which differs here"
        if time.monotonic() > self._looked_at + _FILES_SECONDS:
            if changed := next((path for path, stamp in self._files.items() if _stamp(path) != stamp), None):
                return f"{changed} has changed since it was imported"
            self._looked_at = time.monotonic()
        return ""


_imports: _Imports
"""Of this process; a fork has its own copy."""


def main(descriptor: int, is_tied: int) -> None:
    """Serve the process at the other end of this socket, and become each rank that is forked.

    With `is_tied` this process ends with the thread that started it.
    """
    global _imports
    if is_tied:
        _end_with_parent()
    _imports = _Imports(_outlive_signals())
    if not getattr(sys.flags, "safe_path", False):
        _imports.path.pop(0)  # of ``python -c``; a rank has its script's directory there
    os.environ.pop(ROOM_VARIABLE, None)
    _become(_serve(socket.socket(fileno=descriptor)))


def why_not_become(environ: Mapping[str, str]) -> str:
    """Return why a command with these variables must be started instead; empty if `become` can run it."""
    return _imports.why_not_for(environ)


def become(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Run a command of this Python in this process, a forked one, as if it were executed; it has a warm parent."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does when it starts
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208, as a start of a program does
        with suppress(OSError):  # the list's own
            if int(name) > STDERR and not os.get_inheritable(int(name)):
                os.close(int(name))
    _become(_Rank(command, environ, is_copied=True))


def _outlive_signals() -> dict[int, Any]:
    """Handle signals without an effect, and return the handlers before: a stop of a process group is for the ranks.

    Unlike SIG_IGN, a handler is not inherited through exec.
    """
    return {int(number): signal.signal(number, _outlive) for number in _HANDLED}


def _outlive(_signal_number: int, _frame: object) -> None:
    """Do nothing."""


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _prepare(order: Mapping[str, Any], connection: socket.socket) -> None:
    """Import what is ordered, and answer whether ranks can be forked."""
    files = frozenset(_open_files())
    os.environ.clear()
    os.environ.update(_imports.applied_to(order["environ"]))
    problem = "" if os.getppid() == order["parent"] else "this Python is not a child of the process that started it"
    problem = problem or _import(order["modules"], files, order["of_ranks"])
    note = ""
    if order["extras"] and not problem:
        note = _leave_to_child(order["extras"], files, order["of_ranks"])
    for directory in [order["directory"], *_imports.search(order["environ"].get("PYTHONPATH", ""))]:
        problem = problem or _hidden_by(Path(directory))
    _answer(connection, {"problem": problem, "note": note})
    _imports.keep_stamps()
    gc.freeze()  # the garbage collector would copy what is shared


def _import(modules: Sequence[str], files: Collection[str], of_ranks: Collection[str]) -> str:
    """Import, and return why a fork of this process would now differ from a start; empty if it would not.

    `files` were open before. Each rank has the variables `of_ranks` for itself, and this process has not.
    """
    sys.path[:] = _imports.path
    # The directory may exist for the ranks only. Each rank looks for its own when it needs one.
    tempfile.tempdir = os.environ.get("TMPDIR")
    for module in modules:
        with _imports.of(module), suppress(Exception):  # the script's own import shows the error
            importlib.import_module(module)
        if name := _imports.read(of_ranks):
            return f"the import of {module} reads {name}, which each rank has for itself"
    _imports.path[:] = sys.path
    tempfile.tempdir = None
    return _why_not_forked(files)


def _leave_to_child(extras: Sequence[str], files: Collection[str], of_ranks: Collection[str]) -> str:
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
    if problem := _import(extras, {*files, pipe_of_child}, of_ranks):
        os.write(telling, problem.encode())
        os._exit(0)
    os.close(telling)
    return ""


def _directories(pythonpath: str) -> list[str]:
    return list(dict.fromkeys(map(os.path.abspath, filter(None, pythonpath.split(os.pathsep)))))


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116, of thousands of files
    except OSError:  # in an archive
        return None
    return status.st_mtime_ns, status.st_size


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
            if name.partition(".")[0] in _OF_STARTS:
                return f"a start would import {name}"
            module = sys.modules.get(name.partition(".")[0])
            if module is None or name == "__main__.py":
                continue
            entry = directory / name
            here = getattr(module, "__file__", None)
            if here is not None and Path(here).is_relative_to(directory.resolve()):
                continue
            is_package = (entry / "__init__.py").is_file()
            if is_package and here is not None and _are_same(entry, Path(here).parent):
                continue
            if is_package or entry.suffix in (".py", ".so"):
                return f"{name} beside the script replaces the module {name.partition('.')[0]}"
    return ""


def _are_same(package: Path, imported: Path) -> bool:
    """Return whether each file of a package, such as the smddp that a job brings, is as that of the imported one."""
    try:
        return all(
            path.read_bytes() == (imported / path.relative_to(package)).read_bytes() for path in package.rglob("*.py")
        )
    except OSError:
        return False


def _receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Return a request and its descriptors; end this process if the other end is closed."""
    descriptors = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(_PIECE_BYTES, socket.CMSG_SPACE(_MOST_PASSED * descriptors.itemsize))
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


def _serve(connection: socket.socket) -> _Rank:
    """Do what is ordered; return in each rank only."""
    while True:
        content, received = _receive(connection)
        if "modules" in content:
            _prepare(content, connection)
            continue
        rank = _Rank(**{**content, "descriptors": dict(zip(content["descriptors"], received, strict=True))})
        # Blocked: the handlers of this process would swallow a signal to a new rank.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        problem = _imports.why_not_for(rank.environ)
        pid = -1 if problem else _fork_twice()
        if pid == 0:
            connection.close()
            return rank
        if pid < 0:
            problem = problem or "this host can't fork a process"
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for descriptor in received:
            os.close(descriptor)
        _answer(connection, {"pid": pid, "problem": problem})


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


def _become(rank: _Rank) -> NoReturn:
    """Take over what the rank has for itself, as a start would give it, run its program, and end."""
    global copy
    kept = {number: fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _HIGH) for number, each in rank.descriptors.items()}
    for each in rank.descriptors.values():
        os.close(each)
    for number, each in kept.items():
        os.dup2(each, number)
        os.close(each)
    # The last first, which are the rank's own: where the memory is too small for all, others find a rank by these.
    _show(_ENVIRONMENT, [f"{name}={value}" for name, value in reversed(list(rank.environ.items()))])
    _show(_ARGUMENTS, rank.command)
    os.environ.clear()
    # A launcher would import little of what was imported: what that set is for its ranks.
    os.environ.update(rank.environ if rank.is_copied else _imports.applied_to(rank.environ))
    ctypes.CDLL(None).prctl(_SET_NAME, Path(rank.command[0]).name.encode(), 0, 0, 0)
    if rank.new_session:
        os.setsid()
    if rank.umask >= 0:
        os.umask(rank.umask)
    os.chdir(rank.directory)
    unbuffered = bool(rank.environ.get("PYTHONUNBUFFERED"))
    for number, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
        _open_stream(number, name, unbuffered=unbuffered)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # it has drawn its seed at the import
    copy = _leave_copy() if rank.is_copied else None
    for number, handler in _imports.handlers.items():
        if signal.getsignal(number) is _outlive:  # else an import has set its own
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    _end(_run(rank.command))


def _leave_copy() -> tuple[socket.socket, int]:
    """Fork a copy of this process that serves it, and return the connection and the process ID."""
    ours, theirs = socket.socketpair()
    if copied := os.fork():
        theirs.close()
        return ours, copied
    ours.close()
    try:
        _end_with_parent()
        _outlive_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        _become(_serve(theirs))
    finally:  # what called this function must not go on in two processes
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
    """Write the texts where /proc shows the arguments or the environment: others find a rank by them."""
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
            for name in (command[2], f"{command[2]}.__main__"):
                sys.modules.pop(name, None)  # it would be there twice
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
