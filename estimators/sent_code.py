"""Send a job's code: bundle and upload it, unless it is on S3 already."""

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
    """Upload a job's code with the files `more`; return its S3 URI and script, or None for a recipe, which has no code.

    Code in a repository is cloned first. Raise EstimatorError if the code can't be cloned, bundled or uploaded.
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
    if "git_config" in arguments:  # the plan has already checked code on this machine
        for path in contents.secrets:
            logger.warning("%s looks secret, and is not in the bundle", path)
    directory = None if session.settings is None else session.settings.local_download_dir
    if directory is not None and not Path(directory).is_dir():
        raise EstimatorError(f"The job was not sent: the session's local_download_dir, {directory}, is no directory.")
    with tempfile.TemporaryFile(dir=directory) as archive:
        digest = source_code.write_archive(contents.files, archive)
        return code_upload.upload(archive, digest, arguments, session), contents.entry_point


def _wheels(arguments: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the wheels that smddp needs, by name; none if the image's Python is unknown: the plan has warned of it."""
    if (py_version := arguments.get("py_version")) is None:
        return {}
    several = [*instance_groups(arguments), *instance_preferences(arguments)]
    types = [arguments.get("instance_type"), *(getattr(each, "instance_type", None) for each in several)]
    found = source_code.package_wheels(py_version, [name for name in types if isinstance(name, str)])
    logger.info("the bundle has %s as wheels, for the job has no network", source_code.PACKAGE)
    return found
