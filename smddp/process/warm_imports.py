"""The imports of a warm parent, their effects on its process, and the programs for which a fork equals a start."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from smddp.process.warm_parent import is_read_at_load

_SET_PARENT_DEATH_SIGNAL = 1  # linux/prctl.h
_SERVES = "serves"
"""The answer of a child that takes this process's place."""
_OF_STARTS = ("sitecustomize", "usercustomize")
"""Modules that Python imports when it starts."""


class WarmImports:
    """The imports of this process and their effects. A fork has its own copy."""

    def __init__(self) -> None:
        self.path = list(sys.path)
        """``sys.path`` of a program, without the program's own first entry."""
        if not getattr(sys.flags, "safe_path", False):
            self.path.pop(0)  # from ``python -c``
        self._searched = os.environ.get("PYTHONPATH", "")
        self._began = time.time_ns()
        self._at_load = dict(os.environ)
        """The environment when this process began."""
        self._reads: dict[str, tuple[str, str | None]] = {}
        """By environment variable: the module whose import read it first, and the value."""
        self._changes: dict[str, str | None] = {}
        """Environment variables that imports set, or removed (None)."""
        self._files: dict[str, tuple[int, int] | None] = {}
        self._directories: list[str] = []
        """Directories that imports would have made in a TMPDIR that exists for the programs only."""

    def prepare(
        self, modules: Sequence[str], extras: Sequence[str], environ: Mapping[str, str], of_ranks: Collection[str]
    ) -> tuple[str, str]:
        """Import with these variables; `extras` in a child, which then serves in this process's place.

        Return why no program can be forked, and why `extras` are not imported; empty texts otherwise. `of_ranks` are
        the variables that differ between ranks.
        """
        files = frozenset(_open_files())
        os.environ.clear()
        os.environ.update(self.applied_to(environ))
        problem = self._import(modules, files, of_ranks)
        note = self._leave_to_child(extras, files, of_ranks) if extras and not problem else ""
        return problem, note

    def search(self, pythonpath: str) -> list[str]:
        """Replace the directories of the earlier PYTHONPATH in `path`, as a start would; return the new ones."""
        before, after = _directories(self._searched), _directories(pythonpath)
        if self.path[: len(before)] == before:
            self.path[: len(before)] = after
        else:
            self.path[:0] = after
        is_new = pythonpath != self._searched
        self._searched = pythonpath
        return after if is_new else []

    @contextmanager
    def _noted(self, module: str) -> Iterator[None]:
        """Record what the block, an import of `module`, reads, changes and makes."""
        read, make = os._Environ.__getitem__, os.mkdir  # noqa: SLF001, nothing else sees all reads
        before = dict(os.environ)
        absent = tempfile.tempdir if tempfile.tempdir and not Path(tempfile.tempdir).exists() else None

        def note_and_read(environ: Any, name: Any) -> Any:
            text = os.fsdecode(name) if isinstance(name, bytes) else str(name)
            self._reads.setdefault(text, (module, before.get(text)))
            return read(environ, name)

        def note_or_make(path: Any, *arguments: Any, **options: Any) -> None:
            text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100, symbolic links stay
            if absent is not None and os.path.commonpath([text, absent]) in (text, absent):
                self._directories.append(text)
            else:
                make(path, *arguments, **options)

        os._Environ.__getitem__, os.mkdir = note_and_read, note_or_make  # type: ignore[method-assign]  # noqa: SLF001
        try:
            yield
        finally:
            os._Environ.__getitem__, os.mkdir = read, make  # type: ignore[method-assign]  # noqa: SLF001
            after = dict(os.environ)
            changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
            self._changes.update({name: after.get(name) for name in changed})

    def _read(self, names: Collection[str]) -> str | None:
        """Return the alphabetically first of these variables that an import has read, or None."""
        return min(self._reads.keys() & set(names), default=None)

    def keep_stamps(self) -> None:
        """Record the time and size of each imported file."""
        for module in list(sys.modules.values()):
            if isinstance(path := getattr(module, "__file__", None), str) and path not in self._files:
                stamp = _stamp(path)
                # A file that changed since the start may have been imported before.
                self._files[path] = stamp if stamp is None or stamp[0] < self._began else (0, 0)

    def applied_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return a program's variables, changed as by these imports."""
        return {name: value for name, value in {**environ, **self._changes}.items() if value is not None}

    def make_directories(self) -> None:
        """Make the imports' directories if this program's TMPDIR exists; a host's supervisor has none."""
        if self._directories and Path(os.environ.get("TMPDIR", "")).is_dir():
            for path in self._directories:
                with suppress(OSError):  # what needs the directory makes it again, or says why it can't
                    Path(path).mkdir(parents=True, exist_ok=True)

    def why_not_for(self, environ: Mapping[str, str]) -> str:
        """Return why a program with these variables must be started anew; empty if it can be forked."""
        for name in sorted(self._at_load.keys() | environ.keys()):
            if is_read_at_load(name) and environ.get(name) != self._at_load.get(name):
                return f"libraries read {name} when they are loaded, and it differs"
        if environ.get("PYTHONPATH", "") != self._searched:
            return "PYTHONPATH differs"
        for name, (module, value) in self._reads.items():
            if name != "PYTHONPATH" and environ.get(name) != value:
                return f"the import of {module} reads {name}, which differs here"
        # Thousands of files, which take a few milliseconds.
        changed = next((path for path, stamp in self._files.items() if _stamp(path) != stamp), None)
        return "" if changed is None else f"{changed} has changed since it was imported"

    def _import(self, modules: Sequence[str], files: Collection[str], of_ranks: Collection[str]) -> str:
        """Import modules, and return why a fork of this process would differ from a start; empty if it would not.

        `files` were open before. `of_ranks` are the variables that differ between ranks.
        """
        sys.path[:] = self.path
        # TMPDIR may exist for the programs only. Each one looks for it when it needs it.
        tempfile.tempdir = os.environ.get("TMPDIR")
        before = _state()
        for module in modules:
            with self._noted(module), suppress(Exception):  # the script's own import shows the error
                importlib.import_module(module)
            if name := self._read(of_ranks):
                return f"the import of {module} reads {name}, which each rank has for itself"
            after = _state()
            if changed := [what for what in before if after[what] != before[what]]:
                return f"the import of {module} changes {changed[0]}, which each rank has for itself"
        self.path[:] = sys.path
        tempfile.tempdir = None
        return _why_not_forked(files)

    def _leave_to_child(self, extras: Sequence[str], files: Collection[str], of_ranks: Collection[str]) -> str:
        """Fork a child that imports these modules and serves in this process's place.

        Return an empty text in the child. Here, return why the child can't serve; end if it can.
        """
        told, telling = os.pipe()
        if child := os.fork():
            os.close(telling)
            with os.fdopen(told, "rb") as pipe:
                answer = pipe.read().decode()
            os.waitpid(child, 0)  # a child that serves ends with this process
            if answer == _SERVES:
                os._exit(0)
            return answer or f"an import of {', '.join(extras)} ended the process"
        os.close(told)
        end_with_parent()
        pipe_of_child = f"pipe:[{os.fstat(telling).st_ino}]"
        if problem := self._import(extras, {*files, pipe_of_child}, of_ranks):
            os.write(telling, problem.encode())
            os._exit(0)
        os.write(telling, _SERVES.encode())
        os.close(telling)
        return ""


def _state() -> dict[str, object]:
    """Return what a program begins with anew, whatever imports did; of random numbers, those that are imported."""
    modules: Any = sys.modules
    state: dict[str, object] = {
        "the working directory": os.readlink("/proc/self/cwd"),  # noqa: PTH115, it may be removed
        "sys.stdout or sys.stderr": (id(sys.stdout), id(sys.stderr)),
    }
    if "random" in modules:
        state["the state of random"] = modules["random"].getstate()
    if "torch" in modules:
        state["torch's seed"] = modules["torch"].default_generator.initial_seed()
    return state


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
    # /proc may be that of an outer namespace, in which this process has another number.
    main = os.readlink("/proc/self")  # noqa: PTH115
    others = [each for each in os.listdir("/proc/self/task") if each != main]  # noqa: PTH208
    if not others:
        return ""
    try:
        name = Path(f"/proc/self/task/{others[0]}/comm").read_text().strip()
    except OSError:
        name = "unknown"
    return f"an import started a thread, {name}"


def hidden_by(directory: Path) -> str:
    """Return why a start would import something else from this directory of ``sys.path``; empty if it would not."""
    with suppress(OSError):  # Python finds nothing in it, either
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
                return f"{entry} replaces the module {name.partition('.')[0]}"
    return ""


def _are_same(package: Path, imported: Path) -> bool:
    """Return whether a package, such as the smddp that a job brings, has the same files as the imported one."""
    try:
        return all(
            path.read_bytes() == (imported / path.relative_to(package)).read_bytes() for path in package.rglob("*.py")
        )
    except OSError:
        return False


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
