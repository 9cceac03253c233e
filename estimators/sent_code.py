"""The code of a job as it is sent: bundled and uploaded, unless it lies on S3 already."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators import source_code
from estimators.errors import EstimatorError
from estimators.instances import instance_groups, instance_preferences

if TYPE_CHECKING:
    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)


def sent_code(arguments: Mapping[str, Any], session: Session, *, more: Mapping[str, bytes]) -> tuple[str, str] | None:
    """Upload the code of a job, and return its S3 URI and the script there; None for a training recipe, which has none.

    Code in a repository is cloned first, and bundled as if it had been on this machine.

    Args:
        arguments: The parameters for ``PyTorch``, with versions or an image.
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
    if arguments.get("enable_network_isolation") is True and source_code.needs_package(source):
        more = {**more, **_wheels(arguments)}
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


def _wheels(arguments: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what smddp needs as wheels; nothing for an image of whose Python nothing is said: the plan has warned."""
    if (py_version := arguments.get("py_version")) is None:
        return {}
    several = [*instance_groups(arguments), *instance_preferences(arguments)]
    types = [arguments.get("instance_type"), *(getattr(each, "instance_type", None) for each in several)]
    found = source_code.package_wheels(py_version, [name for name in types if isinstance(name, str)])
    logger.info("the bundle has %s as wheels, for the job has no network", source_code.PACKAGE)
    return found
