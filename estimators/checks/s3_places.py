"""Check that a job's data and output buckets exist: SageMaker reports a missing one only minutes after the start.

This is the only check that sends requests to AWS. The job's role may read objects that the user may not see, so a
refusal by S3 is not a problem.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ParamValidationError

from estimators.checks.channels import requested, uri_of
from estimators.errors import Problem, error, warning
from smddp.display_text import shown_names

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_READ = ("source_dir", "model_uri")
_WRITTEN = ("checkpoint_s3_uri", "output_path", "code_location")
_OBJECTS = ("ManifestFile", "AugmentedManifestFile")
"""Data types whose URI names one object; the others' is a prefix of keys."""
_DEFAULT_BUCKET = re.compile(r"sagemaker-[a-z0-9-]+-\d{12}")
"""The name of the SDK's default bucket, which it creates if missing."""


def check(arguments: Mapping[str, Any], channels: Mapping[str, Any], s3: S3Client) -> Iterator[Problem]:
    """Yield the S3 URIs, among the user's, that do not exist; raise BotoCoreError if S3 can't be reached."""
    manifests = {
        channel["ChannelName"]
        for channel in requested(channels)
        if channel["DataSource"].get("S3DataSource", {}).get("S3DataType") in _OBJECTS
    }
    read = {f"inputs[{name!r}]": (uri_of(place), name in manifests) for name, place in channels.items()}
    read |= {name: (arguments.get(name), name == "source_dir") for name in _READ}
    for parameter, (uri, is_object) in read.items():
        yield from _look(parameter, uri, s3, is_object=is_object, is_written=False)
    for parameter in _WRITTEN:
        yield from _look(parameter, arguments.get(parameter), s3, is_object=False, is_written=True)


def _look(parameter: str, uri: object, s3: S3Client, *, is_object: bool, is_written: bool) -> Iterator[Problem]:
    """Yield that a URI does not exist or matches more keys than meant; nothing if S3 refuses to answer."""
    if not isinstance(uri, str) or not uri.startswith("s3://"):
        return
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not bucket or ":" in bucket:  # no bucket, or an access point's ARN
        return
    if is_written and _DEFAULT_BUCKET.fullmatch(bucket):
        return
    try:
        if is_written:
            s3.head_bucket(Bucket=bucket)
            return
        keys = _names_in(s3, bucket, key) if _is_text(key) and not is_object else _first_of(s3, bucket, key)
    except (ParamValidationError, UnicodeEncodeError):
        found = f"{uri!a} is no place in S3: no bucket or no key has such a name"
        yield error(parameter, found, "Correct the URI.")
        return
    except ClientError as fault:
        if fault.response.get("Error", {}).get("Code") in ("NoSuchBucket", "404"):
            remedy = "Create it, or correct the URI." if is_written else "Correct the URI."
            yield error(parameter, f"there is no bucket {bucket}", remedy)
        else:
            logger.info("%s can't be looked at: %s", uri, fault)
        return
    # Keys are listed in order, and a prefix sorts before every longer key: keys[0] is the object itself if it exists.
    if not keys:
        yield error(parameter, f"{uri}: there are no objects", "Upload it, or correct the URI.")
    elif is_object and keys[0] != key:
        yield error(parameter, f"{uri}: there is no such object", "Upload it, or correct the URI.")
    elif {key, f"{key}/"} & set(keys) and (others := [name for name in keys if name not in (key, f"{key}/")]):
        remedy = f"Give {uri}/ for the directory alone."
        if f"{key}/" not in keys:
            remedy = "Give the object a prefix of its own, or name it in a ManifestFile."
        listed = shown_names(f"s3://{bucket}/{name}" for name in others)
        yield warning(parameter, f"{uri} brings every key that begins with it, also {listed}", remedy)


def _is_text(key: str) -> bool:
    """Return whether a prefix may match keys outside the directory that it names, because it lacks a final slash."""
    return bool(key) and not key.endswith("/")


def _first_of(s3: S3Client, bucket: str, key: str) -> list[str]:
    return [each["Key"] for each in s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", ())]


def _names_in(s3: S3Client, bucket: str, prefix: str) -> list[str]:
    """Return the first thousand objects, and directories with a slash, whose names begin with `prefix`."""
    page = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, Delimiter="/")
    objects = [each["Key"] for each in page.get("Contents", ())]
    return objects + [each["Prefix"] for each in page.get("CommonPrefixes", ())]
