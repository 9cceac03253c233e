"""The code of a job as it is sent: bundled and uploaded, unless it lies on S3 already."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators import source_code
from estimators.errors import EstimatorError

if TYPE_CHECKING:
    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)


def sent_code(arguments: Mapping[str, Any], session: Session, *, more: Mapping[str, bytes]) -> tuple[str, str] | None:
    """Upload the code of a job, and return its S3 URI and the script there; None for a training recipe, which has none.

    Code in a repository is cloned first, and bundled as if it had been on this machine.

    Args:
        arguments: The parameters for ``PyTorch``.
        session: Where the job is sent.
        more: What the bundle has besides the code, by name.

    Raises:
        EstimatorError: The repository can't be had, or the code can't be bundled or uploaded.
    """
    from estimators.sdk import code_upload, request_values

    source = source_code.SourceCode.of(request_values.cloned(arguments))
    if source.entry_point is None:
        return None
    if not source.is_local:
        source_code.tell_of_code_elsewhere()
        return str(source.source_dir), source.entry_point
    contents = source_code.Contents.of(source, more=more)
    if "git_config" in arguments:  # what is on this machine was looked at by the plan
        for path in contents.secrets:
            logger.warning("%s looks secret, and is not in the bundle", path)
    directory = None if session.settings is None else session.settings.local_download_dir
    if directory is not None and not Path(directory).is_dir():
        raise EstimatorError(f"The job was not sent: the session's local_download_dir, {directory}, is no directory.")
    with tempfile.TemporaryFile(dir=directory) as archive:
        digest = source_code.write_archive(contents.files, archive)
        return code_upload.upload(archive, digest, arguments, session), contents.entry_point
