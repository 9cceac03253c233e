"""Everything that a job uses: its hosts and launcher; and S3 prefixes, role, image, disks, network from its request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from estimators import distribution
from estimators.instances import WITH_GPUS, instance_groups, instance_preferences
from estimators.plan.runtime import Runtime
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import CODE_URI, NO_ACCOUNT, JobRequest
from smddp.container.command import PROCESSES_IN_ALL, PROCESSES_PER_HOST
from smddp.display_text import counted

_TIME = re.compile(r"-\d{4}(?:-\d\d){5}-\d{3}$")
"""The time at the end of a name that the SDK generates."""
ANY = "*"
"""Stands for values that are decided only when the job is sent: the time in its name, the digest of its code, and the
account, if no ARN contains it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One channel of a job's data."""

    name: str
    place: str
    """An S3 URI, or a file system with its directory."""
    kind: str
    """``S3Prefix``, ``ManifestFile``, ``AugmentedManifestFile``, ``EFS`` or ``FSxLustre``, as the API calls it."""
    mode: str
    """How the hosts read it: ``File``, ``FastFile``, ``Pipe``, or ``mounted``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Everything that a job uses besides its hosts."""

    job_name: str
    """The job's name, with ``*`` for the time if the SDK generates it."""
    region: str
    account: str
    """The role's account, or ``*`` if only the role's name is known."""
    role: str
    """The ARN of the job's role."""
    image: str | None
    """The image of the hosts, or None for an algorithm of the Marketplace."""
    runtime: Runtime
    """What runs the script, with its versions of PyTorch and Python."""
    code: str | None
    """The S3 URI of the code, uploaded already or when the job is sent; None if the job has no code."""
    uploads_code: bool
    """Whether `code` is uploaded when the job is sent; False if the user has put it on S3."""
    channels: tuple[Channel, ...]
    checkpoints: str | None
    """The S3 prefix of /opt/ml/checkpoints."""
    output: str
    """The S3 prefix of the model and the output."""
    more_outputs: tuple[str, ...]
    """The S3 prefixes of files from TensorBoard, the debugger and the profiler."""
    max_run: int
    """Seconds that the job may train."""
    max_wait: int | None
    """Seconds that a spot job may take, including the wait for instances; None for other jobs."""
    keep_alive: int
    """Seconds that the hosts are kept as a warm pool for the next job."""
    volume_gb: int | None
    """GB of each host's volume, or None for the API's default."""
    volume_key: str | None
    """The KMS key of the volumes."""
    output_key: str | None
    """The KMS key of the output."""
    isolated: bool
    """Whether the containers have no network."""
    encrypts_traffic: bool
    """Whether the traffic between hosts is encrypted."""
    subnets: tuple[str, ...]
    """The subnets of the user's VPC; empty if the job runs in none."""
    security_groups: tuple[str, ...]
    remote_debug: bool
    """Whether the user may open a shell in the running containers."""
    has_tags: bool

    @classmethod
    def of(cls, job_request: JobRequest, job: CompletedJob, *, is_named: bool) -> Resources:
        """Read the resources from a job's request; `is_named` tells whether the user has named the job."""
        from estimators.request.code import code_uri, place_below

        request, arguments, given = job_request.members, job.arguments, job.source
        name: str = request["TrainingJobName"]
        output: str = request["OutputDataConfig"]["S3OutputPath"]
        hosts, vpc = request["ResourceConfig"], request.get("VpcConfig", {})
        name = name if is_named else _TIME.sub(f"-{ANY}", name)
        on_s3 = str(given.source_dir).lower().startswith("s3://") and given.git is None
        location = arguments.get("code_location")
        place = place_below(location or output, is_prefix=bool(location) or "output_path" not in arguments)
        role: str = request["RoleArn"]
        account = role.split(":")[4]
        image = request["AlgorithmSpecification"].get("TrainingImage")
        return cls(
            job_name=name,
            region=job_request.session.boto_region_name,
            account=ANY if account == NO_ACCOUNT else account,
            role=role.replace(f":{NO_ACCOUNT}:", f":{ANY}:"),
            image=image,
            runtime=Runtime.of(image, job_request.session),
            code=given.source_dir if on_s3 else _known(code_uri(place, ANY)),
            uploads_code=not on_s3,
            channels=tuple(_channels(request)),
            checkpoints=request.get("CheckpointConfig", {}).get("S3Uri"),
            output=_known(f"{output.rstrip('/')}/{name}"),
            more_outputs=tuple(dict.fromkeys(map(_known, _more_outputs(request)))),
            max_run=request["StoppingCondition"]["MaxRuntimeInSeconds"],
            max_wait=request["StoppingCondition"].get("MaxWaitTimeInSeconds"),
            keep_alive=hosts.get("KeepAlivePeriodInSeconds", 0),
            volume_gb=hosts.get("VolumeSizeInGB"),
            volume_key=hosts.get("VolumeKmsKeyId"),
            output_key=request["OutputDataConfig"].get("KmsKeyId"),
            isolated=bool(request.get("EnableNetworkIsolation")),
            encrypts_traffic=bool(request.get("EnableInterContainerTrafficEncryption")),
            subnets=tuple(vpc.get("Subnets", ())),
            security_groups=tuple(vpc.get("SecurityGroupIds", ())),
            remote_debug=bool(request.get("RemoteDebugConfig", {}).get("EnableRemoteDebug")),
            has_tags=bool(request.get("Tags")),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the resources as a dict for JSON."""
        return asdict(self)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield each resource as a label and a readable value."""
        waiting = "" if self.max_wait is None else f", {in_words(self.max_wait)} with waiting for spot instances"
        kept = f"; then kept for {in_words(self.keep_alive)}" if self.keep_alive else ""
        yield from self.runtime.lines()
        yield "runs", f"at most {in_words(self.max_run)}{waiting}{kept}"
        if self.code:
            yield "code", self.code
        for channel in self.channels:
            kind = "" if channel.kind == "S3Prefix" else f"{channel.kind}, "
            yield f"channel {channel.name}", f"{channel.place} ({kind}{channel.mode})"
        yield "checkpoints", self.checkpoints or "not kept"
        yield "output", self.output
        if self.more_outputs:
            yield "tools write to", ", ".join(self.more_outputs)
        if self.volume_gb is not None:
            encrypted = f", encrypted with {self.volume_key}" if self.volume_key else ""
            yield "volume", f"{self.volume_gb} GB a host{encrypted}"
        yield "network", ", ".join(self._network())

    def _network(self) -> Iterator[str]:
        yield "none in the containers" if self.isolated else "open"
        if self.subnets:
            yield f"VPC with {', '.join(self.subnets)} and {', '.join(self.security_groups)}"
        if self.encrypts_traffic:
            yield "traffic between hosts encrypted"


def _channels(request: Mapping[str, Any]) -> Iterator[Channel]:
    mode = request["AlgorithmSpecification"].get("TrainingInputMode", "File")
    for channel in request.get("InputDataConfig", ()):
        source = channel["DataSource"]
        on_s3, system = source.get("S3DataSource"), source.get("FileSystemDataSource", {})
        # An isolated job's code is a channel, which `code` shows already.
        if on_s3 and on_s3["S3Uri"] == CODE_URI:
            continue
        yield Channel(
            name=channel["ChannelName"],
            place=on_s3["S3Uri"] if on_s3 else f"{system.get('FileSystemId')}:{system.get('DirectoryPath')}",
            kind=on_s3["S3DataType"] if on_s3 else system.get("FileSystemType", "a source that is not known"),
            mode=channel.get("InputMode", mode) if on_s3 else "mounted",
        )


def _more_outputs(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the S3 prefixes to which a job's tools write, from `DebugHookConfig` and similar members."""
    configs = [request.get(name, {}) for name in ("TensorBoardOutputConfig", "DebugHookConfig", "ProfilerConfig")]
    rules = [*request.get("DebugRuleConfigurations", ()), *request.get("ProfilerRuleConfigurations", ())]
    yield from (each["S3OutputPath"] for each in (*configs, *rules) if each.get("S3OutputPath"))


def _known(uri: str) -> str:
    """Return a URI with ``*`` for an unknown account."""
    return uri.replace(NO_ACCOUNT, ANY)


_COUNT = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The hosts of a job, and the launcher of its ranks."""

    hosts: tuple[tuple[int | None, str], ...]
    """Pairs of number and instance type: one, or one for each instance group. The number is None if a recipe sets it.
    """
    instead: tuple[tuple[int | None, str], ...] = ()
    """Alternatives in the same form: the `instance_preferences` after the first. The job takes the first available."""
    launcher: str
    """The launcher on each host, or on each host of the `trained` groups; on other hosts the script runs alone."""
    trained: tuple[str, ...] = ()
    """The instance groups whose hosts get ranks; empty if all hosts do."""
    hosts_with_ranks: int | None
    """Number of hosts with ranks; None if a recipe sets it, or it depends on the preference taken."""
    processes_per_host: int | None
    """Ranks on each host; None if the container decides (one for each GPU, or one)."""
    stated_processes: int | None = None
    """Ranks over all hosts, if the job limits mpirun to fewer; otherwise None."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Topology:
        """Read the topology from parameters of ``PyTorch``."""
        groups = instance_groups(arguments)
        hosts: list[tuple[int | None, str]] = [(group.instance_count, group.instance_type) for group in groups]
        if "instance_type" in arguments:
            hosts.append((arguments.get("instance_count"), arguments["instance_type"]))
        stated = arguments.get("instance_count")
        preferred = [(each.instance_count or stated, each.instance_type) for each in instance_preferences(arguments)]
        hosts += preferred[:1]
        given = arguments.get("distribution")
        launcher = distribution.launcher(given)
        trained = distribution.trained_groups(arguments)
        counts = [group.instance_count for group in trained] or [count for count, _ in hosts]
        whole = [count for count in counts if isinstance(count, int)]
        vary = len({count for count, _ in preferred}) > 1
        return cls(
            hosts=tuple(hosts),
            instead=tuple(preferred[1:]),
            launcher=launcher,
            trained=tuple(str(group.instance_group_name) for group in trained) if len(trained) < len(groups) else (),
            hosts_with_ranks=sum(whole) if len(whole) == len(counts) and not vary else None,
            processes_per_host=distribution.processes_per_host(given) or _stated(arguments, PROCESSES_PER_HOST),
            stated_processes=_stated(arguments, PROCESSES_IN_ALL) if launcher == "mpirun" else None,
        )

    @property
    def has_gpus(self) -> bool:
        """Whether any host may have a GPU: one whose type is unknown may."""
        types = [name for _, name in (*self.hosts, *self.instead)]
        return not types or any(
            not isinstance(name, str) or name.startswith((*WITH_GPUS, "local_gpu")) for name in types
        )

    @property
    def processes(self) -> int | None:
        """Ranks over all hosts, or None if unknown."""
        if self.stated_processes is not None:
            return self.stated_processes
        if self.processes_per_host is None or self.hosts_with_ranks is None:
            return None
        return self.processes_per_host * self.hosts_with_ranks

    def __str__(self) -> str:
        hosts = ", or ".join([" + ".join(map(_in_words, self.hosts)), *map(_in_words, self.instead)])
        launcher = f"{self.launcher} on {', '.join(self.trained)}" if self.trained else self.launcher
        if self.processes_per_host is None:
            return f"{hosts}, {launcher}"
        each = counted(self.processes_per_host, "process", "processes")
        total = "" if self.processes in (None, self.processes_per_host) else f", {self.processes} in all"
        return f"{hosts}, {launcher}, {each} on each{total}"


def _in_words(hosts: tuple[int | None, str]) -> str:
    count, instance_type = hosts
    return f"{'as many as the recipe says' if count is None else count} × {instance_type}"


def _stated(arguments: Mapping[str, Any], hyperparameter: str) -> int | None:
    stated = str(arguments.get("hyperparameters", {}).get(hyperparameter, ""))
    return int(stated) if _COUNT.fullmatch(stated) else None


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def in_words(seconds: int) -> str:
    """Return seconds as ``1 d 2 h`` or ``1 min 30 s``, without units that are 0."""
    parts = []
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"
