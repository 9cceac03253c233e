"""Brings the input channels from S3 to the hosts: plans which object becomes which files, then transfers them.

Every object is fetched once, and copied to the other hosts that get it: all hosts are on one machine.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeVar

from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.instance_groups import Host
from estimators.local.engine.transfers.objects import S3Uri, download, explaining, list_objects

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

InputMode = Literal["File", "FastFile", "Pipe"]

_TRANSFERS_AT_ONCE = 8
_Name = TypeVar("_Name", str, int)


@dataclass(kw_only=True, slots=True, frozen=True)
class InputChannel:
    """One input channel, from S3."""

    name: str
    mode: InputMode
    uri: S3Uri
    path: PurePosixPath
    """Its directory, relative to /opt/ml."""
    manifest: bool
    """Whether ``uri`` is a manifest, not a prefix."""
    sharded: bool
    """Whether each host gets a share of the objects, not all of them."""
    groups: tuple[str, ...] = ()
    """The instance groups that get it; empty: all."""
    attributes: tuple[str, ...] = ()
    """Attributes to send for each line, in order, of an augmented manifest. Empty for other inputs."""
    seed: int | None = None
    """Shuffles the objects before the hosts share them; in Pipe mode differently for each epoch."""
    recordio: bool = False
    """Whether each object, or attribute, is sent as a RecordIO record; only in Pipe mode."""
    gzip: bool = False
    """Whether objects are decompressed as they are sent; only in Pipe mode."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The entry of a training job's channel in inputdataconfig.json."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Fetch:
    """One object, and the files that it becomes."""

    uri: S3Uri
    paths: tuple[Path, ...]


def receivers(channel: InputChannel, hosts: Sequence[Host]) -> list[Host]:
    """Return the hosts that get a channel, all of it or a share."""
    return [host for host in hosts if not channel.groups or host.group in channel.groups]


def plan_channel(s3: S3Client, channel: InputChannel, hosts: Sequence[Host], roots: Mapping[str, Path]) -> list[Fetch]:
    """Return the objects of a channel and their files on the hosts; ``roots`` has every host's /opt/ml.

    Raise FailedJobError if there is no object, or one can't be a file of the channel.
    """
    directories = [roots[host.name] / channel.path for host in receivers(channel, hosts)]
    files = channel_files(s3, channel)
    paths: dict[str, list[Path]] = {}
    for directory, share in zip(directories, share_out(channel, files, len(directories)), strict=True):
        for name in share:
            paths.setdefault(name, []).append(directory / name)
    return [Fetch(uri=files[name], paths=tuple(to)) for name, to in paths.items()]


def channel_files(s3: S3Client, channel: InputChannel) -> dict[str, S3Uri]:
    """Return the objects of a channel by their path in it.

    Raise FailedJobError if there is no object, or one can't be a file of the channel.
    """
    with explaining(f'Data download failed: channel "{channel.name}"', channel.uri):
        if channel.manifest:
            objects = _manifest(s3, channel)
        else:
            objects = {_below(channel.uri.key, uri.key): uri for uri in list_objects(s3, channel.uri)}
    _check_files(channel, objects)
    return {str(relative_path(name)): uri for name, uri in objects.items()}


def share_out(channel: InputChannel, names: Iterable[_Name], hosts: int, *, epoch: int = 0) -> list[list[_Name]]:
    """Return each host's share of the names or line numbers, in order; a seed shuffles each epoch differently."""
    ordered = sorted(names)
    if channel.seed is not None:
        seed = f"{channel.seed} {epoch}" if epoch else channel.seed
        random.Random(seed).shuffle(ordered)  # noqa: S311  # an order, not a secret
    return [ordered[number::hosts] if channel.sharded else ordered for number in range(hosts)]


def fetch_all(s3: S3Client, fetches: Iterable[Fetch], what: str, *, cancelled: Callable[[], bool]) -> None:
    """Fetch all objects.

    Raise CancelledError once ``cancelled`` returns True, or FailedJobError with ``what`` before the reason.
    """

    def bring(fetch: Fetch) -> None:
        with explaining(what, fetch.uri):
            download(s3, fetch.uri, fetch.paths[0], cancelled=cancelled)
            for copy in fetch.paths[1:]:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(fetch.paths[0], copy)

    with ThreadPoolExecutor(_TRANSFERS_AT_ONCE) as pool:
        # The first error cancels the transfers that have not begun; leaving the block waits for the others.
        try:
            for _ in pool.map(bring, fetches):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def prefix_objects(s3: S3Client, uri: S3Uri) -> dict[str, S3Uri]:
    """Return the objects in a prefix, taken as a folder, by their path in it."""
    folder = S3Uri(bucket=uri.bucket, key=f"{uri.key.rstrip('/')}/" if uri.key else "")
    return {_below(folder.key, found.key): found for found in list_objects(s3, folder)}


def relative_path(name: str) -> PurePosixPath | None:
    """Return ``name`` as a relative path, or None if it is empty or leaves its directory."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if not parts or ".." in parts or "\0" in name else PurePosixPath(*parts)


def _below(prefix: str, key: str) -> str:
    """Return a key's path in the channel: relative to the prefix if it is a folder, else to the prefix's folder."""
    if prefix.endswith("/") or key[len(prefix) :].startswith("/"):
        return key[len(prefix) :]
    return key[prefix.rfind("/") + 1 :]


def _manifest(s3: S3Client, channel: InputChannel) -> dict[str, S3Uri]:
    """Read ``[{"prefix": "s3://bucket/folder/"}, "relative/key", …]``."""
    try:
        document = json.loads(s3.get_object(Bucket=channel.uri.bucket, Key=channel.uri.key)["Body"].read())
        head, *keys = document
        prefix = S3Uri.parse(head["prefix"])
        return {str(key): S3Uri(bucket=prefix.bucket, key=f"{prefix.key}{key}") for key in keys}
    except (ValueError, TypeError, KeyError) as error:
        raise _failure(
            channel,
            f'{channel.uri} is not a manifest of the form [{{"prefix": "s3://bucket/folder/"}}, "key", …] ({error!r})',
        ) from error


def _check_files(channel: InputChannel, objects: Mapping[str, S3Uri]) -> None:
    """Check that each object has a path of its own in the channel, and none is another one's folder."""
    if not objects:
        raise _failure(channel, f'no S3 objects found under "{channel.uri}"; upload them, or correct the S3Uri')
    files: dict[str, S3Uri] = {}
    for name, uri in objects.items():
        path = relative_path(name)
        if path is None:
            raise _failure(channel, f"the key of {uri} leaves the channel's directory; rename the object")
        if (twin := files.get(str(path))) is not None:
            raise _failure(channel, f"{uri} and {twin} would be the same file; rename one")
        files[str(path)] = uri
    folders = {str(folder): name for name in files for folder in PurePosixPath(name).parents}
    for folder, name in folders.items():
        if folder in files:
            raise _failure(
                channel, f"{files[folder]} is an object and, for {files[name]}, a folder; a file can't be both"
            )


def _failure(channel: InputChannel, why: str) -> FailedJobError:
    return FailedJobError(f'ClientError: Data download failed: channel "{channel.name}": {why}')
