"""The fork server: a process that has imported the large packages once, and forks each program that a client asks for.

It is a program of its own: ``python -I server.py SOCKET [DIRECTORY...] MODULE...``, with absolute directories for
``sys.path``. A forked child leaves `serve` with the request, becomes the program, runs it as ``__main__``, and ends as
every Python does, except that it leaves what was imported to the kernel.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import json
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import weakref
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

NAMESPACES = ("user", "mnt", "uts", "pid")
_ranks_finalize = "FORK_PYTHON_FINALIZES" in os.environ
_SIGNALS = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})


@dataclass
class Request:
    """What a client asked for, and how to answer it."""

    content: dict[str, Any]
    descriptors: list[int]
    connection: socket.socket
    pid: int = 0
    """The program's process, as this one sees it."""
    waits_for: int = 0
    """The child of this process whose end is the program's."""


@dataclass
class Server:
    """Forks programs until its standard input ends."""

    listener: socket.socket
    requests: dict[socket.socket, Request] = field(default_factory=dict)

    def serve(self) -> Request:
        """Return in a forked child, with what it is to run; the server itself never returns."""
        selector = selectors.DefaultSelector()
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for each in (self.listener, woken, 0):
            selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    os._exit(0)  # whoever started the server is gone
                elif key.fileobj == woken:
                    os.read(woken, 4096)
                    self._tell_ends(selector)
                elif key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    request = self._receive(connection)
                    if request is None:
                        continue
                    if self._fork(request):
                        selector.close()
                        # Objects that close their descriptors later would close the program's own of those numbers.
                        for held in (self.listener, connection, *self.requests):
                            held.detach()
                        return request
                    for descriptor in request.descriptors:
                        os.close(descriptor)
                    self.requests[connection] = request
                    selector.register(connection, selectors.EVENT_READ)
                else:
                    self._forward(key.fileobj, selector)  # type: ignore[arg-type]

    def _receive(self, connection: socket.socket) -> Request | None:
        fds = array.array("i")
        data, ancillary, _, _ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(16 * fds.itemsize))
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        while data and not data.endswith(b"\n"):
            data += connection.recv(1 << 20)
        return Request(json.loads(data), list(fds), connection) if data else None

    def _fork(self, request: Request) -> bool:
        """Fork; whether this is the program's process now."""
        told, telling = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(told)
            other = _enter_namespaces(request.descriptors[3:7])
            if other and (child := os.fork()):  # only a child is in the PID namespace
                os.write(telling, b"%d" % child)
                os.close(telling)
                _end_as(os.waitpid(child, 0)[1])
            if not other:
                os.write(telling, b"%d" % os.getpid())
            os.close(telling)
            return True
        os.close(telling)
        # Where its namespaces are gone it ends without a word: never 0, which is this process's own group.
        request.waits_for, request.pid = first, int(os.read(told, 32) or first)
        os.close(told)
        return False

    def _tell_ends(self, selector: selectors.DefaultSelector) -> None:
        for connection, request in list(self.requests.items()):
            ended, status = os.waitpid(request.waits_for, os.WNOHANG)
            if ended:
                selector.unregister(connection)
                del self.requests[connection]
                with contextlib.suppress(OSError):
                    connection.sendall(b"%d\n" % status)
                connection.close()

    def _forward(self, connection: socket.socket, selector: selectors.DefaultSelector) -> None:
        """Send the signals that the client got; if the client is gone, the program goes too."""
        request = self.requests.get(connection)
        if request is None:
            return
        try:
            signals = connection.recv(64)
        except OSError:
            signals = b""
        for signum in signals or [signal.SIGKILL]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(request.pid, signum)
        if not signals:
            selector.unregister(connection)
            del self.requests[connection]
            connection.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(request.waits_for, 0)


def _enter_namespaces(descriptors: list[int]) -> bool:
    """Join the client's namespaces where they are others; whether that of processes is."""
    own = [os.stat(f"/proc/self/ns/{name}").st_ino for name in NAMESPACES]  # before /proc is another one's
    other = [name for name, fd, ino in zip(NAMESPACES, descriptors, own, strict=True) if os.fstat(fd).st_ino != ino]
    for name, descriptor in zip(NAMESPACES, descriptors, strict=True):
        if name in other:
            _setns(descriptor)
        os.close(descriptor)
    return "pid" in other


def _setns(descriptor: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, 0):
        raise OSError(ctypes.get_errno(), "setns")


def _end_as(status: int) -> None:
    """End as the process with this status did."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def become(request: Request) -> None:
    """Take over the client's streams, directory, environment and signals."""
    content = request.content
    signal.set_wakeup_fd(-1)
    for signum in _SIGNALS:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN if signum in content["ignored"] else signal.SIG_DFL)
    if signal.SIGINT not in content["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.SIGPIPE not in content["ignored"]:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does
    signal.pthread_sigmask(signal.SIG_SETMASK, content["blocked"])
    for number, descriptor in enumerate(request.descriptors[:3]):
        os.dup2(descriptor, number)
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 256) for descriptor in request.descriptors[7:]]
    os.closerange(3, 256)
    for number, descriptor in zip(content["kept"], kept, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.umask(content["umask"])
    os.chdir(content["directory"])
    os.environ.clear()
    os.environ.update(content["environ"])
    unbuffered = content["unbuffered"] or bool(os.environ.get("PYTHONUNBUFFERED"))
    for stream, mode, number in (("stdin", "r", 0), ("stdout", "w", 1), ("stderr", "w", 2)):
        is_line_buffered = number == 2 or os.isatty(number)
        opened = os.fdopen(number, mode, closefd=False, errors="backslashreplace" if number == 2 else None)
        if mode == "w":
            opened.reconfigure(line_buffering=is_line_buffered or unbuffered, write_through=unbuffered)
        setattr(sys, stream, opened)
        setattr(sys, f"__{stream}__", opened)
    sys.executable = content["executable"]
    sys.argv = content["argv"]
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:0] = [*content["path"], *paths]
    sys.path_importer_cache.clear()
    if threads := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))
    import random

    random.seed()


def run(content: dict[str, Any]) -> None:
    """Run the program as the main one."""
    main = sys.modules["__main__"]
    for name in [name for name in vars(main) if not name.startswith("__")]:
        delattr(main, name)
    if content["kind"] == "module":
        import runpy

        runpy._run_module_as_main(content["program"])  # what `python -m` calls
        return
    source = content["program"]
    if content["kind"] == "script":
        main.__file__ = content["program"]
        with open(content["program"], "rb") as file:
            source = file.read()
    main.__doc__ = main.__spec__ = None
    exec(compile(source, content["program"] if content["kind"] == "script" else "<string>", "exec"), vars(main))


def run_and_report(content: dict[str, Any]) -> int:
    """Run the program and return its exit code; show what nobody caught as Python does, without this file's frames."""
    try:
        run(content)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            traceback = traceback.tb_next
        sys.last_value = error  # as Python keeps it
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code: int) -> None:
    """Wait for threads, call what is to be called at the exit, drop the program's own objects, and end.

    The modules stay as they are: to free half a gigabyte that the server shares is to copy it, a second a process. A
    program with the variable ``FORK_PYTHON_FINALIZES``, or a rank of a server with it, takes that second, and Python's
    own end.
    """
    if "FORK_PYTHON_FINALIZES" in os.environ or (_ranks_finalize and "RANK" in os.environ):
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    # Python calls no handler either once it frees the modules: a handler's own globals are gone.
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_IGN)
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # as Python says that its output was lost
    os._exit(code & 0xFF)


def remember_models() -> None:
    """Let this process read each of botocore's models once: else each session does, a tenth of a second a client."""
    from botocore.loaders import JSONFileLoader

    read = JSONFileLoader.load_file
    models: dict[str, Any] = {}

    def load_file(loader: Any, path: str) -> Any:
        if path not in models and (model := read(loader, path)) is not None:
            models[path] = model
        return models.get(path)

    JSONFileLoader.load_file = load_file  # type: ignore[method-assign]


def prepare(modules: list[str]) -> None:
    """Import the modules and read the models that most programs need; leave logging and the excepthook as they were.

    As ``estimators.sdk.quiet`` does, which a server of foreign packages alone must not import.
    """
    root = logging.getLogger()
    level, handlers, excepthook = root.level, list(root.handlers), sys.excepthook
    configuration = logging.getLogger("sagemaker.config")
    configuration.setLevel(logging.WARNING)
    for module in modules:
        import_module(module)
    configuration.setLevel(logging.NOTSET)
    remember_models()
    session = import_module("botocore.session").Session()
    session.get_available_regions("s3")  # which reads the table of endpoints
    for service in ("s3", "sagemaker", "logs", "sts"):
        for kind in ("service-2", "endpoint-rule-set-1", "paginators-1"):
            session.get_component("data_loader").load_service_model(service, kind)
    root.setLevel(level)
    root.handlers[:] = handlers
    sys.excepthook = excepthook


def main(path: str, names: list[str]) -> None:
    """Import, listen, serve; run the program in each child."""
    sys.path[:0] = [name for name in names if name.startswith("/")]
    modules = [name for name in names if not name.startswith("/")]
    sys.modules["triton"] = None  # type: ignore[assignment]  # which complains of what a frozen heap leaves at the end
    prepare(modules)
    del sys.modules["triton"]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    os.rename(f"{path}.new", path)
    # What was imported is left alone, while a child runs and when it ends: to look at it for garbage is to copy it.
    gc.freeze()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    request = Server(listener).serve()
    become(request)
    end(run_and_report(request.content))


if __name__ == "__main__":
    # As a module of another name: the program of a child becomes the main one.
    _spec = spec_from_file_location("fork_server", __file__)
    _module = module_from_spec(_spec)
    sys.modules[_spec.name] = _module
    _spec.loader.exec_module(_module)
    _module.main(sys.argv[1], sys.argv[2:])
