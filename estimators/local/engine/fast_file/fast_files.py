"""The channels of a job in FastFile mode: what each host is to see, and who serves it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from estimators.local.engine.channels import listed_files, receivers, share_out
from estimators.local.engine.fast_file.mount import Mount
from estimators.local.engine.fast_file.reading import Reading
from estimators.local.engine.fast_file.tree import Tree
from estimators.local.engine.hosts import Host
from estimators.local.engine.request import Channel

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class FastFiles:
    """All mounts of one attempt of a job.

    Args:
        s3: A client.
        say: Writes a line into the log of a host.
    """

    def __init__(self, s3: S3Client, *, say: Callable[[str, str], None]) -> None:
        self._s3 = s3
        self._say = say
        self._trees: dict[str, dict[str, Tree]] = {}
        self._open = contextlib.ExitStack()
        self.failure: str | None = None
        """Why something could not be read, the last time that it was so."""

    def plan(self, channel: Channel, hosts: Sequence[Host]) -> None:
        """See what is in a channel, and which host is to have what of it.

        Raises:
            FailedJobError: If there is no object, or one can't be a file of the channel.
        """
        files = listed_files(self._s3, channel)
        getting = receivers(channel, hosts)
        trees: dict[int, Tree] = {}
        for host, share in zip(getting, share_out(channel, files, len(getting)), strict=True):
            if id(share) not in trees:  # all hosts have one share, unless the channel is sharded
                trees[id(share)] = Tree({name: files[name] for name in share})
            self._trees.setdefault(host.name, {})[f"input/data/{channel.name}"] = trees[id(share)]

    def mounts(self, host: str) -> tuple[str, ...]:
        """Where in its /opt/ml a host is to have mounts."""
        return tuple(self._trees.get(host, ()))

    def serve(self, host: str, devices: Sequence[int]) -> None:
        """Serve a host's mounts, in the order of `mounts`; the descriptors are closed in the end, or if it fails."""
        left = list(devices)
        try:
            reading = Reading(self._s3, failed=lambda why: self._read_failed(host, why))
            self._open.callback(reading.close)
            for path, tree in self._trees[host].items():
                mount = Mount(left[0], tree, reading, name=f"fast file {host} {path}")
                mount.start()
                del left[0]
                self._open.callback(mount.close)
        finally:
            for device in left:
                os.close(device)

    def close(self) -> None:
        """Break all mounts off."""
        self._open.close()

    def _read_failed(self, host: str, why: str) -> None:
        self.failure = why
        self._say(host, f"[platform] {why}")
