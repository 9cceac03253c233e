"""The code of a job, and of its rules, on its way to S3: where V2 puts it, and encrypted as V2 does."""

from __future__ import annotations

import logging
import re
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError
from sagemaker.core.s3 import S3Uploader, s3_path_join

from estimators.sdk.code_place import code_prefix
from estimators.sdk.library import fw_utils

if TYPE_CHECKING:
    from estimators.sdk.library import Session
    from estimators.sdk.v3.request import Job

logger = logging.getLogger(__name__)


def upload_code(job: Job) -> tuple[str, str]:
    """Upload the code of a job whose code is on this machine, unless it is on S3 already.

    Returns:
        Its S3 URI, and the script there.

    Raises:
        ValueError: There is no such script.
    """
    given, session = job.parameters, job.session
    if given.source_dir and not given.source_dir.lower().startswith("s3://"):
        fw_utils.validate_source_dir(given.entry_point, given.source_dir)
    bucket, prefix = code_prefix(
        given.code_location, job.output_path, default_output=not given.output_path, job_name=job.name
    )
    has_output_key = bucket == urlsplit(job.output_path).netloc
    uploaded = fw_utils.tar_and_upload_dir(
        session=session.boto_session,
        bucket=bucket,
        s3_key_prefix=prefix,
        script=given.entry_point,
        directory=given.source_dir,
        dependencies=list(given.dependencies or ()),
        kms_key=given.output_kms_key if has_output_key else None,
        s3_resource=session.s3_resource,
        settings=session.settings,
        expected_bucket_owner=_owner(session, bucket),
    )
    return uploaded.s3_prefix, uploaded.script_name


def upload_rule(path: str, rule: str, session: Session) -> str:
    """Upload the source of a rule of the user's own, and return its S3 URI."""
    uri = s3_path_join("s3://", session.default_bucket(), session.default_bucket_prefix, rule, str(uuid.uuid4()))
    uploaded: str = S3Uploader.upload(local_path=path, desired_s3_uri=uri, sagemaker_session=session)
    return uploaded


def _owner(session: Session, bucket: str) -> str | None:
    """Return the account that must own a bucket of the SDK's choice: others could have made one of that name."""
    if not re.fullmatch(rf"sagemaker-{re.escape(session.boto_region_name)}-\d{{12}}", bucket):
        return None
    try:
        account: str = session.boto_session.client("sts").get_caller_identity()["Account"]
    except (BotoCoreError, ClientError) as fault:
        logger.warning("that %s is a bucket of this account is not checked: %s", bucket, fault)
        return None
    return account if bucket.endswith(account) else None
