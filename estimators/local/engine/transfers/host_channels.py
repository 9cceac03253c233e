"""The input channels of an attempt, each in its mode: copied before the program runs, or sent while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.instance_groups import Host
from estimators.local.engine.transfers.channels import InputChannel, fetch_all, plan_channel, receivers
from estimators.local.engine.transfers.pipes import Pipes

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_COPIED = "[platform] Channel {name} is in FastFile mode: here it is copied before the start, as in File mode"


class HostInputs:
    """All channels. Leave the ``with`` block, which ends the pipes, only when no program runs any more."""

    def __init__(
        self,
        s3: S3Client,
        channels: Sequence[InputChannel],
        hosts: Sequence[Host],
        trees: Mapping[str, HostTree],
        *,
        cannot_pipe: str | None = None,  # why Pipe mode is not available; None: it is
        failed: Callable[[str], None],  # called with the reason if data can't be sent to a running program
        say: Callable[[str, str], None],  # writes a line to a host's log
    ) -> None:
        self._s3 = s3
        self._channels = channels
        self._hosts = hosts
        self._trees = trees
        self._cannot_pipe = cannot_pipe
        self._failed = failed
        self._say = say
        self._pipes: list[Pipes] = []

    def bring(self, *, cancelled: Callable[[], bool]) -> None:
        """Copy the channels in File and FastFile mode, and open the pipes of those in Pipe mode.

        Raise FailedJobError if a channel is empty or S3 refuses, CancelledError once ``cancelled`` returns True.
        """
        for channel in self._channels:
            if channel.mode == "Pipe":
                if self._cannot_pipe is not None:
                    raise FailedJobError(
                        f'ClientError: channel "{channel.name}" is in Pipe mode, which can\'t be had here, because '
                        f"{self._cannot_pipe}: use File mode."
                    )
                pipes = Pipes(self._s3, channel, self._hosts, self._trees, failed=self._failed)
                self._pipes.append(pipes)
                pipes.open()
            else:
                if channel.mode == "FastFile":
                    for host in receivers(channel, self._hosts):
                        self._say(host.name, _COPIED.format(name=channel.name))
                what = f'Data download failed: channel "{channel.name}"'
                roots = {name: tree.root for name, tree in self._trees.items()}
                fetches = plan_channel(self._s3, channel, self._hosts, roots)
                fetch_all(self._s3, fetches, what, cancelled=cancelled)

    def __enter__(self) -> HostInputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pipes in self._pipes:
            pipes.close()
