"""The input of one life of a job, each channel in its mode: copied before the program runs, or sent while it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from estimators.local.engine.channels import fetch_all, plan_channel
from estimators.local.engine.hosts import Host
from estimators.local.engine.pipes import Pipes
from estimators.local.engine.request import Channel

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class Inputs:
    """All channels; leaving the ``with`` block ends what is still sent, and comes when no program runs any more.

    Args:
        s3: A client.
        channels: The channels.
        hosts: All hosts of the job.
        roots: Every host's /opt/ml.
        failed: Is told why data can't be sent to a program that runs.
    """

    def __init__(
        self,
        s3: S3Client,
        channels: Sequence[Channel],
        hosts: Sequence[Host],
        roots: Mapping[str, Path],
        *,
        failed: Callable[[str], None],
    ) -> None:
        self._s3 = s3
        self._channels = channels
        self._hosts = hosts
        self._roots = roots
        self._failed = failed
        self._pipes: list[Pipes] = []

    def bring(self, *, cancelled: Callable[[], bool]) -> None:
        """Copy what is to be there when the program starts, and make the pipes.

        Raises:
            FailedJobError: If there is nothing in a channel, or S3 refuses.
            CancelledError: If ``cancelled`` said so.
        """
        for channel in self._channels:
            if channel.mode == "Pipe":
                pipes = Pipes(self._s3, channel, self._hosts, self._roots, failed=self._failed)
                self._pipes.append(pipes)
                pipes.open()
            else:
                what = f'Data download failed: channel "{channel.name}"'
                fetch_all(
                    self._s3, plan_channel(self._s3, channel, self._hosts, self._roots), what, cancelled=cancelled
                )

    def __enter__(self) -> Inputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pipes in self._pipes:
            pipes.close()
