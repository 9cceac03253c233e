"""Whether a job's data are there, and the buckets that it writes to: what SageMaker says only minutes after the start.

The one check that asks AWS. A role may read what whoever sends the job may not see: where S3 refuses to tell, nothing
is wrong.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ParamValidationError

from estimators.checks.channels import requested, uri_of
from estimators.problem import Problem, error

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_READ = ("source_dir", "model_uri")
_WRITTEN = ("checkpoint_s3_uri", "output_path", "code_location")
_OBJECTS = ("ManifestFile", "AugmentedManifestFile")
"""Types of data whose URI is an object; another's is what keys begin with."""
_DEFAULT_BUCKET = re.compile(r"sagemaker-[a-z0-9-]+-\d{12}")
"""What the SDK calls the bucket that it makes where it needs one."""


def check(arguments: Mapping[str, Any], channels: Mapping[str, Any], s3: S3Client) -> Iterator[Problem]:
    """Yield the places that are not there, of those that the user names.

    Args:
        arguments: The parameters for ``PyTorch``.
        channels: The channels by name.
        s3: Who is asked.

    Raises:
        botocore.exceptions.BotoCoreError: S3 can't be asked at all.
    """
    manifests = {
        channel["ChannelName"]
        for channel in requested(channels)
        if channel["DataSource"].get("S3DataSource", {}).get("S3DataType") in _OBJECTS
    }
    read = {f"inputs[{name!r}]": (uri_of(place), name in manifests) for name, place in channels.items()}
    read |= {name: (arguments.get(name), name == "source_dir") for name in _READ}
    for parameter, (uri, is_object) in read.items():
        if found := _look(uri, s3, is_object=is_object, is_written=False):
            yield error(parameter, *found)
    for parameter in _WRITTEN:
        if found := _look(arguments.get(parameter), s3, is_object=False, is_written=True):
            yield error(parameter, *found)


def _look(uri: object, s3: S3Client, *, is_object: bool, is_written: bool) -> tuple[str, str] | None:
    """Return what is missing of a place, and the remedy; None where nothing is, or where it can't be told."""
    if not isinstance(uri, str) or not uri.startswith("s3://"):
        return None
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not bucket or ":" in bucket:  # an access point's ARN
        return None
    if is_written and _DEFAULT_BUCKET.fullmatch(bucket):
        return None
    try:
        if is_written:
            s3.head_bucket(Bucket=bucket)
            return None
        first = s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", ())
    except (ParamValidationError, UnicodeEncodeError):
        return f"{uri!a} is no place in S3: no bucket or no key has such a name", "Correct the URI."
    except ClientError as fault:
        if fault.response.get("Error", {}).get("Code") in ("NoSuchBucket", "404"):
            remedy = "Create it, or correct the URI." if is_written else "Correct the URI."
            return f"there is no bucket {bucket}", remedy
        logger.info("%s can't be looked at: %s", uri, fault)
        return None
    # Keys come in their order, and none with a prefix comes before the prefix itself.
    if not first:
        found = f"{uri}: there are no objects"
    elif is_object and first[0]["Key"] != key:
        found = f"{uri}: there is no such object"
    else:
        return None
    return found, "Upload it, or correct the URI."
