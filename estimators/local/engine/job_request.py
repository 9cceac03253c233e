"""What the requests for all kinds of jobs on hosts have in common, and how each of them is read and refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from estimators.local.chaos import TAG, JobFault, LoseHost, NoCapacity, Reclaim, parse, require_job_faults
from estimators.local.engine.errors import invalid
from estimators.local.engine.hosts import InstanceGroup, name_hosts
from estimators.local.engine.local_files import LocalFiles
from estimators.local.engine.objects import S3Uri
from estimators.metric_definition import MetricDefinition
from estimators.request_rules import BrokenRule, broken_by_tags

ML_ROOT = PurePosixPath("/opt/ml")

_MOST_NAME_BYTES = 255
"""Linux gives no file a longer name."""
_MOST_PATH_BYTES = 1024
"""Far from Linux's 4096: the directory lies in another one on this machine, and files lie in it."""

Ways = tuple[tuple[InstanceGroup, ...], ...]
InputMode = Literal["File", "FastFile", "Pipe"]


@dataclass(kw_only=True, slots=True, frozen=True)
class InputChannel:
    """One input channel, from S3."""

    name: str
    mode: InputMode
    uri: S3Uri
    path: PurePosixPath
    """Its directory, relative to /opt/ml."""
    manifest: bool
    """Whether ``uri`` is a manifest's, and not a prefix."""
    sharded: bool
    """Whether each host gets its share of the objects, and not all of them."""
    groups: tuple[str, ...] = ()
    """The instance groups that get it; empty: all."""
    attributes: tuple[str, ...] = ()
    """What is sent of each line, in order, if ``uri`` is an augmented manifest's; empty: it is none."""
    seed: int | None = None
    """Shuffles the objects before they are shared out; in Pipe mode anew for each epoch."""
    recordio: bool = False
    """Whether each object, or attribute, is sent as a RecordIO record; only in Pipe mode."""
    gzip: bool = False
    """Whether objects are decompressed as they are sent; only in Pipe mode."""
    config: Mapping[str, str] = field(default_factory=dict)
    """A training job's: its entry in inputdataconfig.json."""


@dataclass(kw_only=True, slots=True, frozen=True)
class SyncedFolder:
    """A directory of every host that is copied to S3."""

    what: str
    """What it is for, as a FailureReason says it."""
    uri: S3Uri
    path: PurePosixPath
    """The directory, relative to /opt/ml."""


@dataclass(kw_only=True, slots=True, frozen=True)
class JobRequest:
    """What shapes a job on hosts, of whichever kind."""

    name: str
    image: str
    members: Mapping[str, Any]
    """The request itself, for those who asked for it."""
    ways: Ways
    """The groups that the job's hosts may be of, the preferred ones first: one way, unless it prefers some types."""
    channels: tuple[InputChannel, ...]
    network_isolation: bool
    max_runtime: int
    """Seconds that its programs may run, over all attempts."""
    entrypoint: tuple[str, ...]
    """The program to run instead of the image's; empty: the image's."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    tags: Mapping[str, str]
    faults: tuple[JobFault, ...]
    """What its attempts are to meet."""
    spot: bool = False
    max_wait: int | None = None
    """Seconds since the job's creation; None without spot."""
    max_pending: int | None = None
    """Seconds that an attempt may wait for its hosts; None: as long as it takes."""
    max_retries: int = 0
    """How often the job begins again when the platform has failed it."""
    metrics: tuple[MetricDefinition, ...] = ()
    files: LocalFiles | None = None
    """What of the job lies on this machine, and not in S3. No request over the API can say so."""

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The groups that its hosts are of; of one that prefers some types, the first of them."""
        return self.ways[0]


def read_tags(tags: list[dict[str, str]] | tuple[()]) -> dict[str, str]:
    """Return a request's tags by their keys.

    Raises:
        ApiError: ValidationException, for a key that comes twice or is AWS's own.
    """
    refuse(broken_by_tags(tags))
    return {tag["Key"]: tag["Value"] for tag in tags}


def read_faults(tags: Mapping[str, str], ways: Ways, *, spot: bool = False) -> tuple[JobFault, ...]:
    """Return the faults of a job's tag, each of which its attempts can meet.

    Args:
        tags: The job's.
        ways: The groups of hosts that it may have.
        spot: Whether it is a spot job.

    Raises:
        ApiError: ValidationException, for one that they can't.
    """
    try:
        faults = require_job_faults(parse(tags.get(TAG, "")))
    except ValueError as error:
        raise invalid(f"Tags: {TAG}: {error}") from None
    hosts = max(([host.name for host in name_hosts(groups)] for groups in ways), key=len)
    types = {group.instance_type for groups in ways for group in groups}
    for fault in faults:
        if isinstance(fault, Reclaim) and not spot:
            raise invalid(f"Tags: {TAG}: {fault}: only spot jobs are reclaimed. Set EnableManagedSpotTraining.")
        if isinstance(fault, LoseHost) and fault.host not in hosts:
            known = " to ".join(dict.fromkeys((hosts[0], hosts[-1])))
            raise invalid(f"Tags: {TAG}: {fault}: the job has no such host, but {known}.")
        if isinstance(fault, NoCapacity) and fault.instance_type not in (None, *types):
            raise invalid(f"Tags: {TAG}: {fault}: the job asks for no such type, but {', '.join(sorted(types))}.")
    return faults


def parse_uri(text: str, member: str) -> S3Uri:
    """Read a member that is an ``s3://bucket/key``.

    Raises:
        ApiError: ValidationException, if it is none.
    """
    try:
        return S3Uri.parse(text)
    except ValueError as error:
        raise invalid(f"{member}: {error}.") from None


def require_path(path: PurePosixPath, member: str) -> None:
    """Return if there can be such a directory on every host.

    Raises:
        ApiError: ValidationException, if there can't.
    """
    try:
        sizes = [len(part.encode()) for part in path.parts]
    except UnicodeEncodeError:
        raise invalid(f"{member} is {ascii(str(path))[:100]}, which is not UTF-8; give another directory.") from None
    if max(sizes) > _MOST_NAME_BYTES or sum(sizes) + len(sizes) > _MOST_PATH_BYTES:
        raise invalid(
            f"{member} begins with {str(path)[:60]!r}; no name in it may have over {_MOST_NAME_BYTES} bytes, and it "
            f"may have {_MOST_PATH_BYTES} at most: give a shorter one."
        )


def refuse(broken: Iterable[BrokenRule]) -> None:
    """Return if no rule is broken.

    Raises:
        ApiError: ValidationException, with all that are.
    """
    if said := " ".join(map(str, broken)):
        raise invalid(said)
