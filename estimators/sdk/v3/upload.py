"""The source of a rule of the user's own, on its way to S3: where V2 puts it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from sagemaker.core.s3 import S3Uploader, s3_path_join

if TYPE_CHECKING:
    from estimators.sdk.library import Session


def upload_rule(path: str, rule: str, session: Session) -> str:
    """Upload the source of a rule of the user's own, and return its S3 URI."""
    uri = s3_path_join("s3://", session.default_bucket(), session.default_bucket_prefix, rule, str(uuid.uuid4()))
    uploaded: str = S3Uploader.upload(local_path=path, desired_s3_uri=uri, sagemaker_session=session)
    return uploaded
