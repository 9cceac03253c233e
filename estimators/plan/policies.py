"""The IAM policies that one job needs: for its role, and for the user who sends it.

The role's rules are those that AWS lists for CreateTrainingJob, narrowed to the job's own resources:
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html#sagemaker-roles-createtrainingjob-perms A rule from
another source names it in its function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from estimators.plan.resources import ANY, Resources

_VERSION = "2012-10-17"
_ECR = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.[a-z.]+/(?P<repository>[^:@]+)")
_LOG_GROUP = "log-group:/aws/sagemaker/TrainingJobs"

Statement = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Two IAM policy documents, and notes on what they can't cover."""

    role: Mapping[str, Any]
    """For the job's role, which must also trust sagemaker.amazonaws.com."""
    submitter: Mapping[str, Any]
    """For the user who calls ``fit()``, waits and reads the log."""
    notes: tuple[str, ...]
    """Rights that the job may need, but does not reveal."""

    @classmethod
    def of(cls, job: Resources) -> Policies:
        """Return the policies of a job with these resources."""
        partition = _partition(job.region)
        return cls(
            role={"Version": _VERSION, "Statement": list(_of_role(job, partition))},
            submitter={"Version": _VERSION, "Statement": list(_of_submitter(job, partition))},
            notes=tuple(_notes(job)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return both documents and the notes as a dict for JSON."""
        return {"role": self.role, "submitter": self.submitter, "notes": list(self.notes)}


def _of_role(job: Resources, partition: str) -> Iterator[Statement]:
    yield from _reading(job, partition)
    written = [_objects(uri.rstrip("/"), partition, "/*") for uri in (job.output, *job.more_outputs)]
    yield _allow("WriteOutput", ["s3:PutObject", "s3:AbortMultipartUpload"], written)
    if job.checkpoints:
        yield from _checkpoints(job.checkpoints, partition)
    if job.image and (found := _ECR.match(job.image)):
        yield _allow("AskForImage", ["ecr:GetAuthorizationToken"], "*")
        yield _allow(
            "PullImage",
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            f"arn:{partition}:ecr:{found['region']}:{found['account']}:repository/{found['repository']}",
        )
    yield _allow(
        "WriteLogs",
        ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
        [f"arn:{partition}:logs:{job.region}:{job.account}:{_LOG_GROUP}{rest}" for rest in ("", ":*")],
    )
    yield _allow("WriteMetrics", ["cloudwatch:PutMetricData"], "*")
    if job.subnets:
        yield from _network_interfaces()
    if job.output_key:
        # S3 requires GenerateDataKey for each upload, and Decrypt for a multipart upload:
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html
        actions = ["kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey"]
        yield _with_key("EncryptOutput", actions, job.output_key, job, partition)
    if job.volume_key:
        actions = ["kms:CreateGrant", "kms:DescribeKey"]
        yield _with_key("EncryptVolumes", actions, job.volume_key, job, partition)
    if job.remote_debug:
        # https://docs.aws.amazon.com/sagemaker/latest/dg/train-remote-debugging.html
        channels = ["CreateControlChannel", "CreateDataChannel", "OpenControlChannel", "OpenDataChannel"]
        yield _allow("RemoteDebugging", [f"ssmmessages:{name}" for name in channels], "*")


def _reading(job: Resources, partition: str) -> Iterator[Statement]:
    """Yield the rules for data and code. A channel's URI is a prefix of keys, and need not end at a slash."""
    prefixes = [channel.place for channel in job.channels if channel.kind == "S3Prefix"]
    files = [channel.place for channel in job.channels if channel.kind in ("ManifestFile", "AugmentedManifestFile")]
    if job.code:
        files.append(job.code)
    if objects := [_objects(uri, partition, ANY) for uri in prefixes] + [_objects(uri, partition) for uri in files]:
        yield _allow("ReadDataAndCode", ["s3:GetObject"], list(dict.fromkeys(objects)))
    for number, uri in enumerate(dict.fromkeys(prefixes)):
        yield _listing(f"ListData{number or ''}", uri, partition, f"{_key(uri)}{ANY}")


def _checkpoints(uri: str, partition: str) -> Iterator[Statement]:
    """Yield the rules for checkpoints, which SageMaker copies in both directions, and which smddp itself writes.

    SageMaker repeats the job's deletions on S3. smddp aborts the uploads of killed processes
    (s3.list_multipart_uploads), and replaces objects conditionally, for which S3 requires the right to read them.
    """
    prefix = uri.rstrip("/")
    key = _key(prefix)
    actions = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
    yield _allow("KeepCheckpoints", actions, _objects(prefix, partition, "/*"))
    # S3 answers 404 for an absent object only to users who may list; that request has no prefix to compare.
    condition = {"StringLikeIfExists": {"s3:prefix": [key, f"{key}/*"] if key else [ANY]}}
    yield {**_allow("ListCheckpoints", ["s3:ListBucket"], _bucket(uri, partition)), "Condition": condition}
    # IAM has no prefix condition for this action.
    yield _allow("FindUnfinishedUploads", ["s3:ListBucketMultipartUploads"], _bucket(uri, partition))


def _network_interfaces() -> Iterator[Statement]:
    """Yield the rules of a job in a VPC. IAM supports no resource for the Describe actions."""
    changing = [
        "ec2:CreateNetworkInterface",
        "ec2:CreateNetworkInterfacePermission",
        "ec2:DeleteNetworkInterface",
        "ec2:DeleteNetworkInterfacePermission",
    ]
    describing = ["DhcpOptions", "NetworkInterfaces", "SecurityGroups", "Subnets", "Vpcs"]
    yield _allow("JoinVpc", [*changing, *(f"ec2:Describe{what}" for what in describing)], "*")


def _of_submitter(job: Resources, partition: str) -> Iterator[Statement]:
    """Yield the rules for the calls of ``fit()``, from its own source and the SDK's."""
    names = dict.fromkeys((job.job_name, job.job_name.lower()))  # a job's ARN contains its name in lower case
    jobs = [f"arn:{partition}:sagemaker:{job.region}:{job.account}:training-job/{name}" for name in names]
    actions = ["sagemaker:CreateTrainingJob", "sagemaker:DescribeTrainingJob", "sagemaker:StopTrainingJob"]
    yield _allow("TrainingJob", sorted([*actions, *(["sagemaker:AddTags"] if job.has_tags else [])]), jobs)
    passed = {"Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}}
    yield {**_allow("PassRole", ["iam:PassRole"], job.role), **passed}
    if job.account == ANY:
        yield _allow("FindRole", ["iam:GetRole"], job.role)
    if job.uploads_code and job.code:
        # GetObject: a HEAD finds code that is already uploaded.
        yield _allow("UploadCode", ["s3:GetObject", "s3:PutObject"], _objects(job.code, partition))
    if any(re.fullmatch(rf"sagemaker-{job.region}-(\d{{12}}|\*)", _split(uri)[0]) for uri in _own_places(job)):
        bucket = f"arn:{partition}:s3:::sagemaker-{job.region}-{job.account}"
        yield _allow("MakeDefaultBucket", ["s3:CreateBucket", "s3:ListBucket"], bucket)
        yield _allow("FindDefaultBucket", ["s3:ListAllMyBuckets"], "*")
    if job.uploads_code and job.output_key and job.code and _split(job.code)[0] == _split(job.output)[0]:
        yield _with_key("EncryptCode", ["kms:Decrypt", "kms:GenerateDataKey"], job.output_key, job, partition)
    group = f"arn:{partition}:logs:{job.region}:{job.account}:{_LOG_GROUP}"
    yield _allow("ReadLog", ["logs:DescribeLogStreams", "logs:GetLogEvents"], [group, f"{group}:log-stream:*"])


def _own_places(job: Resources) -> Iterator[str]:
    yield job.output
    if job.uploads_code and job.code:
        yield job.code


def _notes(job: Resources) -> Iterator[str]:
    yield "If a bucket of the data, or of checkpoints, is encrypted with a key of your own, add kms:Decrypt on that key"
    if ANY in job.job_name:
        yield "Give fit() a job_name, and the policies hold for that job alone"
    if job.account == ANY:
        yield "Give the role's ARN instead of its name, and the policies hold for its account alone"
    for channel in job.channels:
        if channel.kind in ("ManifestFile", "AugmentedManifestFile"):
            yield f"Add s3:GetObject on what the manifest of the channel {channel.name} lists"
        elif channel.kind != "S3Prefix":
            yield f"Where the file system of the channel {channel.name} asks for IAM, allow the role to mount it"
    if job.image and not _ECR.match(job.image):
        yield f"{job.image} is not in ECR: what its registry asks for is not in these policies"
    for name, key in (("output_kms_key", job.output_key), ("volume_kms_key", job.volume_key)):
        if key:
            yield f"The policy of the key in {name} must let the role, too"


def _allow(sid: str, actions: list[str], resources: str | list[str]) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}


def _listing(sid: str, uri: str, partition: str, *prefixes: str) -> Statement:
    condition = {"StringLike": {"s3:prefix": list(prefixes)}}
    return {**_allow(sid, ["s3:ListBucket"], _bucket(uri, partition)), "Condition": condition}


def _with_key(sid: str, actions: list[str], key: str, job: Resources, partition: str) -> Statement:
    """Return a rule for a key by its ARN, ID or alias; IAM accepts an alias only as a condition.

    https://docs.aws.amazon.com/kms/latest/developerguide/alias-authorization.html
    """
    place, _, rest = key.rpartition(":")
    place = place or f"arn:{partition}:kms:{job.region}:{job.account}"
    if rest.startswith("alias/"):
        condition = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": rest}}
        return {**_allow(sid, actions, f"{place}:key/*"), "Condition": condition}
    return _allow(sid, actions, f"{place}:{rest if rest.startswith('key/') else f'key/{rest}'}")


def _partition(region: str) -> str:
    import boto3

    return str(boto3.Session().get_partition_for_region(region))


def _split(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def _key(uri: str) -> str:
    return _split(uri)[1]


def _bucket(uri: str, partition: str) -> str:
    return f"arn:{partition}:s3:::{_split(uri)[0]}"


def _objects(uri: str, partition: str, rest: str = "") -> str:
    bucket, key = _split(uri)
    return f"arn:{partition}:s3:::{bucket}/{f'{key}{rest}' if key else rest.lstrip('/')}"
