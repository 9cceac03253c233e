"""A job's code on S3: uploaded next to the jobs' output or to ``code_location``, under a name from its content.

V2's ``PyTorch`` uses the job's name instead, and so uploads the same code for each job.

1. Anyone with write access to the bucket can put an object where code is looked for. So an existing object is used
   only if it has the same bytes.
2. S3 itself computes an upload's SHA-256, stores it, and returns it on HEAD. If a store has none, as some
   S3-compatible ones, the object is read.
3. In every other case, also if HEAD is forbidden, the code is uploaded over the existing object.
4. Between this check and the job's start the bucket must be trusted: AWS's images verify no digest of their code.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from estimators import source_code
from estimators.errors import not_sent
from estimators.instances import instance_groups, instance_preferences
from estimators.request.completed_job import CompletedJob
from estimators.source_code import SourceCode

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)

LARGEST = 5 * 2**30
"""Most bytes of a single PUT, the only upload for which S3 stores a SHA-256 (S3's quotas)."""
_ARCHIVE = "sourcedir.tar.gz"
"""The file's name. A container without a network finds the code in its channel by this name."""
_BY_DEFAULT = {"ServerSideEncryption": "aws:kms"}
_PIECE = 2**20


def upload_code(job: CompletedJob, session: Session) -> tuple[str, str] | None:
    """Bundle a job's code, and upload it unless it is there; return its S3 URI and script.

    Return None for a training recipe, which has no code. Code in a git repository is cloned first. Raise
    EstimatorError if the code can't be cloned, bundled or uploaded.
    """
    from estimators.sdk import request_values

    source, arguments, more = job.source, job.arguments, job.bundled.files
    if is_in_git := source.git is not None:
        source = SourceCode.of(request_values.cloned(arguments))
    if source.entry_point is None:
        return None
    if not source.is_local:
        source_code.tell_of_code_elsewhere()
        return str(source.source_dir), source.entry_point
    if arguments.get("enable_network_isolation") is True and source_code.needs_package(source):
        more = {**more, **_wheels(arguments)}
    contents = source_code.Contents.of(source, more=more)
    if is_in_git:  # the plan has already checked code on this machine
        for path in contents.secrets:
            logger.warning("%s looks secret, and is not in the bundle", path)
    directory = None if session.settings is None else session.settings.local_download_dir
    if directory is not None and not Path(directory).is_dir():
        raise not_sent(
            f"the session's local_download_dir, {directory}, is no directory", "Make it, or give another one."
        )
    with tempfile.TemporaryFile(dir=directory) as archive:
        digest = source_code.write_archive(contents.files, archive)
        return upload(archive, digest, arguments, session), contents.entry_point


def _wheels(arguments: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the wheels that smddp needs, by name; none if the image's Python is unknown: the plan has warned of it."""
    if (py_version := arguments.get("py_version")) is None:
        return {}
    several = [*instance_groups(arguments), *instance_preferences(arguments)]
    types = [arguments.get("instance_type"), *(getattr(each, "instance_type", None) for each in several)]
    found = source_code.package_wheels(py_version, [name for name in types if isinstance(name, str)])
    logger.info("the bundle has %s as wheels, for the job has no network", source_code.PACKAGE)
    return found


def upload(archive: BinaryIO, digest: str, arguments: Mapping[str, Any], session: Session) -> str:
    """Upload the archive of a job's code, unless present; return its S3 URI.

    `digest` is its SHA-256 in hexadecimal digits. Raise EstimatorError if the code is too large, or S3 refuses it.
    """
    from estimators.sdk import sessions

    size = archive.seek(0, os.SEEK_END)
    archive.seek(0)
    if size > LARGEST:
        raise not_sent(
            f"the packed code has {size:,} bytes; S3 takes at most {LARGEST:,}",
            "Name what the job does not need in a .smddpignore, and bring data by a channel.",
        )
    place = code_place(arguments, session)
    encryption = _encryption(arguments, session, urlsplit(place).netloc)
    uri = code_uri(place, digest + _suffix(encryption))
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    owner = _owner(session, bucket)
    name: dict[str, Any] = {"Bucket": bucket, "Key": key, **({"ExpectedBucketOwner": owner} if owner else {})}
    target = _Object(client=sessions.s3_client(session), name=name, size=size, digest=digest)
    try:
        if target.is_there():
            logger.info("code unchanged, already at %s", uri)
        else:
            target.client.put_object(**name, **encryption, Body=archive, ChecksumSHA256=target.checksum)
            logger.info("uploaded the code, %s bytes, to %s", f"{size:,}", uri)
    except ClientError as fault:
        raise not_sent(
            f"its code can't be uploaded to {uri}: {fault}", "Let your user write there, or give another code_location."
        ) from fault
    return uri


def _encryption(arguments: Mapping[str, Any], session: Session, bucket: str) -> dict[str, Any]:
    """Return the encryption members as V2 sets them: the output's key if the code is in the output's bucket."""
    from estimators.sdk import sessions

    key = arguments.get("output_kms_key") or sessions.configured_output_key(session)
    output = arguments.get("output_path")
    if key and bucket == (urlsplit(output).netloc if output else sessions.default_bucket(session)):
        return {**_BY_DEFAULT, "SSEKMSKeyId": key}
    return _BY_DEFAULT if session.settings is None or session.settings.encrypt_repacked_artifacts else {}


def _suffix(encryption: Mapping[str, str]) -> str:
    """Return a suffix for each kind of encryption: with another key, a user may be denied the code."""
    if encryption == _BY_DEFAULT:
        return ""
    return f"-{hashlib.sha256(json.dumps(encryption, sort_keys=True).encode()).hexdigest()[:12]}"


def _owner(session: Session, bucket: str) -> str | None:
    """Return the account that must own the SDK's default bucket, whose name any account could take; otherwise None."""
    if not re.fullmatch(rf"sagemaker-{re.escape(session.boto_region_name)}-\d{{12}}", bucket):
        return None
    try:
        account: str = session.boto_session.client("sts").get_caller_identity()["Account"]
    except (BotoCoreError, ClientError) as fault:
        logger.warning("can't check that the bucket %s belongs to this account: %s", bucket, fault)
        return None
    return account if bucket.endswith(account) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """The S3 object for an archive."""

    client: S3Client
    name: dict[str, Any]
    """The request members that identify it."""
    size: int
    """Bytes."""
    digest: str
    """The archive's SHA-256, in hexadecimal digits."""

    @property
    def checksum(self) -> str:
        """The digest in S3's format."""
        return base64.b64encode(bytes.fromhex(self.digest)).decode()

    def is_there(self) -> bool:
        """Return whether the existing object has the archive's bytes; False if S3 does not allow a look."""
        try:
            found = self.client.head_object(**self.name, ChecksumMode="ENABLED")
            if found["ContentLength"] != self.size:
                return False
            if known := found.get("ChecksumSHA256"):
                return known == self.checksum
            digest = hashlib.sha256()
            for piece in self.client.get_object(**self.name)["Body"].iter_chunks(_PIECE):
                digest.update(piece)
            return digest.hexdigest() == self.digest
        except (ClientError, BotoCoreError) as fault:
            if not isinstance(fault, ClientError) or fault.response["Error"]["Code"] not in ("404", "NoSuchKey"):
                logger.info("the code is uploaded, because S3 does not tell whether it is there already: %s", fault)
            return False


def code_place(arguments: Mapping[str, Any], session: Session) -> str:
    """Return the S3 URI below which a session uploads code; create the default bucket if no parameter names one."""
    from estimators.sdk import sessions

    if named := arguments.get("code_location") or arguments.get("output_path"):
        return place_below(named, is_prefix=bool(arguments.get("code_location")))
    default = "/".join(filter(None, [sessions.default_bucket(session), session.default_bucket_prefix]))
    return place_below(f"s3://{default}", is_prefix=True)


def place_below(uri: str, *, is_prefix: bool) -> str:
    """Return the S3 URI for code below a URI; unless `is_prefix`, only its bucket counts, as in V2's output_path."""
    place = urlsplit(uri)
    return "/".join(filter(None, ["s3:/", place.netloc, place.path.strip("/") if is_prefix else "", "source"]))


def code_uri(place: str, content: str) -> str:
    """Return the S3 URI of one version of the code, from `code_place` and a name for its content."""
    return f"{place}/{content}/{_ARCHIVE}"
