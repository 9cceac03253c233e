"""Answers the kernel's requests for one mount, from its first to its last."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor

from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.fast_file import protocol
from estimators.local.engine.fast_file.protocol import Operation, Request
from estimators.local.engine.fast_file.reading import OpenObject, Reading
from estimators.local.engine.fast_file.tree import Node, Tree

logger = logging.getLogger(__name__)

_READERS = 8
"""Requests to read that wait for S3 at the same time."""
_CLOSE_SECONDS = 5.0
_MAY_COME_AGAIN = (errno.EINTR, errno.EAGAIN, errno.ENOENT)
"""Errors of a read from /dev/fuse that mean nothing: ENOENT is a request that was taken back."""


class Mount:
    """One file system, in threads of its own.

    Args:
        device: A descriptor of /dev/fuse with a mount at its other end; the mount's from now on.
        tree: What is in it.
        reading: Reads the objects.
        name: What its threads are called.
    """

    def __init__(self, device: int, tree: Tree, reading: Reading, *, name: str) -> None:
        self._device = device
        self._tree = tree
        self._reading = reading
        self._files: dict[int, OpenObject] = {}
        self._handles = itertools.count(1)
        self._replying = threading.Lock()
        self._open = True
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(device, False)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix=f"{name} reader")
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Begin to answer, in the background."""
        self._thread.start()

    def close(self) -> None:
        """Break the mount off: whoever waits for an answer has an error at once, as all who ask later."""
        os.write(self._waker, b"x")
        self._thread.join(_CLOSE_SECONDS)
        if not self._thread.is_alive():
            os.close(self._waker)
            os.close(self._woken)

    def _serve(self) -> None:
        ready = select.poll()
        ready.register(self._device, select.POLLIN)
        ready.register(self._woken, select.POLLIN)
        try:
            while all(descriptor != self._woken for descriptor, _ in ready.poll()):
                try:
                    data = os.read(self._device, protocol.REQUEST_BYTES)
                except OSError as error:
                    if error.errno in _MAY_COME_AGAIN:
                        continue
                    return  # ENODEV: the host has ended, and the mount with it
                self._answer(Request.parse(data))
        finally:
            with self._replying:  # after this, the number may be another file's
                self._open = False
                os.close(self._device)
            self._readers.shutdown(wait=False, cancel_futures=True)

    def _answer(self, request: Request) -> None:
        if request.operation in protocol.UNANSWERED:
            return
        if request.operation == Operation.READ:
            file = self._files.get(request.handle)
            if file is None:
                self._reply(request, error=errno.EBADF)
            else:
                self._readers.submit(self._read, request, file)
            return
        node = self._tree.nodes.get(request.node)
        if node is None and request.operation not in (Operation.INIT, Operation.DESTROY):
            self._reply(request, error=errno.ESTALE)
        else:
            self._answer_at_once(request, node or self._tree.nodes[protocol.ROOT])

    def _answer_at_once(self, request: Request, node: Node) -> None:
        match request.operation:
            case Operation.INIT:
                self._reply(request, protocol.started(request))
            case Operation.LOOKUP:
                child = node.children.get(request.name)
                if child is None:
                    self._reply(request, error=errno.ENOENT)
                else:
                    self._reply(request, protocol.entry(child.attributes))
            case Operation.GETATTR:
                self._reply(request, protocol.attributes_of(node.attributes))
            case Operation.OPEN if node.object is not None:
                handle = next(self._handles)
                self._files[handle] = self._reading.open(node.object)
                self._reply(request, protocol.opened(handle, is_directory=False))
            case Operation.RELEASE:
                if (file := self._files.pop(request.handle, None)) is not None:
                    file.close()
                self._reply(request)
            case Operation.OPENDIR:
                self._reply(request, protocol.opened(0, is_directory=True))
            case Operation.READDIR:
                self._reply(request, _list(node, *request.range))
            case Operation.STATFS:
                self._reply(request, protocol.statistics(len(self._tree.nodes)))
            case Operation.RELEASEDIR | Operation.DESTROY:
                self._reply(request)
            case _:
                self._reply(request, error=errno.ENOSYS)

    def _read(self, request: Request, file: OpenObject) -> None:
        try:
            data = file.read(*request.range)
        except FailedJobError:  # it was told already
            self._reply(request, error=errno.EIO)
        except BaseException:  # without a reply, the program would wait for ever, and could not even be killed
            if self._open:
                logger.exception("a read of %s failed by a defect of the platform", self._thread.name)
            self._reply(request, error=errno.EIO)
        else:
            self._reply(request, data)

    def _reply(self, request: Request, data: bytes = b"", *, error: int = 0) -> None:
        header = protocol.header(request, len(data), error=error)
        with self._replying, contextlib.suppress(OSError):  # ENOENT: who asked has gone; ENODEV: all have
            if self._open:
                os.writev(self._device, [header, data] if data else [header])


def _list(node: Node, offset: int, size: int) -> bytes:
    """As many entries of a directory, from the one with the number ``offset``, as go into ``size`` bytes."""
    listed, length = [], 0
    for number, name, child in node.list(offset):
        is_directory = child.object is None
        packed = protocol.directory_entry(child.number, name, is_directory=is_directory, following=number + 1)
        if (length := length + len(packed)) > size:
            break
        listed.append(packed)
    return b"".join(listed)
