"""The common part of the requests for all jobs on hosts, and how their members are read, refused or only recorded.

Each kind of job has its `RULES`, what the platform does with each member, beside its request.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from estimators.local.chaos import TAG, JobFault, LoseHost, NoCapacity, Reclaim, parse, require_job_faults
from estimators.local.engine.errors import invalid
from estimators.local.engine.instance_groups import InstanceGroup, name_hosts
from estimators.local.engine.transfers.channels import InputChannel
from estimators.local.engine.transfers.objects import S3Uri
from estimators.metric_definition import MetricDefinition

ML_ROOT = PurePosixPath("/opt/ml")

_MOST_NAME_BYTES = 255
"""Linux's limit on a file name."""
_MOST_PATH_BYTES = 1024
"""Well below Linux's 4096: the directory is inside another one on this machine, and has files in it."""

Preferences = tuple[tuple[InstanceGroup, ...], ...]
_CHANNELS = "/opt/ml/input/data"


@dataclass(kw_only=True, slots=True, frozen=True)
class LocalFiles:
    """Files and directories of this machine. Only an executor of containers can mount them."""

    code: Path | None
    """Copied to each host as /opt/ml/code; None: the code is elsewhere."""
    channels: Mapping[str, Path]
    """The file or directory of each channel that is not in S3."""
    checkpoints: Path | None
    """The directory of all hosts' checkpoints; None: S3, or no checkpoints."""
    checkpoint_path: str
    """The path of that directory on the hosts."""

    @property
    def mounts(self) -> dict[str, Path]:
        """Local paths by their paths on the hosts. A channel that is one file becomes a directory with that file."""
        channels = {
            f"{_CHANNELS}/{name}" + ("" if path.is_dir() else f"/{path.name}"): path
            for name, path in self.channels.items()
        }
        return channels | ({} if self.checkpoints is None else {self.checkpoint_path: self.checkpoints})


@dataclass(kw_only=True, slots=True, frozen=True)
class HostedRequest:
    """The part of a request that all kinds of jobs on hosts share."""

    name: str
    image: str
    members: Mapping[str, Any]
    """The request itself, for descriptions."""
    preferences: Preferences
    """Alternative instance groups in order of preference: only one, unless the job has InstancePreferences."""
    channels: tuple[InputChannel, ...]
    network_isolation: bool
    max_runtime: int
    """Seconds that programs may run, over all attempts."""
    entrypoint: tuple[str, ...]
    """The program; empty: the image's own."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    tags: Mapping[str, str]
    faults: tuple[JobFault, ...]
    """The faults to inject, from the job's tag."""
    spot: bool = False
    max_wait: int | None = None
    """Seconds since the job's creation; None without spot."""
    max_pending: int | None = None
    """Seconds that an attempt may wait for its hosts; None: no limit."""
    max_retries: int = 0
    """How often the job may begin again after a failure of the platform."""
    metrics: tuple[MetricDefinition, ...] = ()
    files: LocalFiles | None = None
    """The job's files on this machine instead of S3. An API request can't set it."""

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The instance groups of its hosts: the most preferred ones."""
        return self.preferences[0]


def read_faults(tags: Mapping[str, str], preferences: Preferences, *, spot: bool = False) -> tuple[JobFault, ...]:
    """Return the faults of a job's tag; raise ApiError for a fault that the job's attempts can't meet."""
    try:
        faults = require_job_faults(parse(tags.get(TAG, "")))
    except ValueError as error:
        raise invalid(f"Tags: {TAG}: {error}") from None
    hosts = max(([host.name for host in name_hosts(groups)] for groups in preferences), key=len)
    types = {group.instance_type for groups in preferences for group in groups}
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
    """Read a member of the form ``s3://bucket/key``; raise ApiError for any other text."""
    try:
        return S3Uri.parse(text)
    except ValueError as error:
        raise invalid(f"{member}: {error}.") from None


def require_path(path: PurePosixPath, member: str) -> None:
    """Raise ApiError if a host can't have a directory of this path."""
    try:
        sizes = [len(part.encode()) for part in path.parts]
    except UnicodeEncodeError:
        raise invalid(f"{member} is {ascii(str(path))[:100]}, which is not UTF-8; give another directory.") from None
    if max(sizes) > _MOST_NAME_BYTES or sum(sizes) + len(sizes) > _MOST_PATH_BYTES:
        raise invalid(
            f"{member} begins with {str(path)[:60]!r} and is too long: a name in it has at most {_MOST_NAME_BYTES} "
            f"bytes, and the whole path {_MOST_PATH_BYTES}. Give a shorter path."
        )


class Support(enum.Enum):
    """What the platform does with a member."""

    HONOURED = "honoured"
    RECORDED = "recorded"
    """The job's description shows the member, which has no effect; the job's log says so."""
    REFUSED = "refused"


@dataclass(kw_only=True, slots=True, frozen=True)
class Rule:
    """What the platform does with a member, and with its nested members without a rule of their own."""

    support: Support
    note: str = ""
    """A remark for the table in the docs."""
    instead: str = ""
    """What to give in place of a refused member."""
    said: bool = True
    """Whether the log says that the member is only recorded; False if it could have no effect here."""


def rule_of(path: str, rules: Mapping[str, Rule]) -> Rule | None:
    """Return the rule of a member, such as ``VpcConfig.Subnets``, or of its nearest parent with a rule; else None."""
    while path and path not in rules:
        path = path.rpartition(".")[0]
    return rules.get(path)


def only_recorded(members: Mapping[str, Any], rules: Mapping[str, Rule]) -> list[str]:
    """Return the paths of a request's members that have no effect though the author may expect one."""
    return [path for path in _with_support(Support.RECORDED, members, rules) if rules[path].said]


def refuse_unsupported(members: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise one ApiError with all members of a request that the platform refuses."""
    if refused := _with_support(Support.REFUSED, members, rules):
        raise invalid(
            " ".join(f"{path} is not offered by the local platform; {rules[path].instead}." for path in refused)
        )


def _with_support(support: Support, members: Mapping[str, Any], rules: Mapping[str, Rule]) -> list[str]:
    """Return the paths in a request that have a rule with this support, in the rules' order."""
    asked = dict.fromkeys(_paths(members))
    return [path for path, rule in rules.items() if path in asked and rule.support is support]


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all members in a request that are neither false nor empty."""
    if isinstance(value, list):
        for each in value:
            yield from _paths(each, path)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if inner not in (False, "", [], {}):
                yield (inside := f"{path}.{name}".lstrip("."))
                yield from _paths(inner, inside)
