"""The S3 URI of a job's code: by content, next to the output of jobs, or in ``code_location``.

V2's ``PyTorch`` puts the code below the job's name, and so uploads the same code for each job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from estimators.sdk.library import Session

UploadCode = Callable[[], tuple[str, str] | None]
"""Uploads a job's code, if absent, and returns its S3 URI and script; None for a training recipe, whose code the SDK
uploads."""

_ARCHIVE = "sourcedir.tar.gz"
"""The file's name. A container without a network finds the code in its channel by this name."""


def code_place(arguments: Mapping[str, Any], session: Session) -> str:
    """Return the S3 URI below which a session uploads code; create the default bucket if no parameter names one."""
    if named := arguments.get("code_location") or arguments.get("output_path"):
        return place_below(named, is_prefix=bool(arguments.get("code_location")))
    default = "/".join(filter(None, [session.default_bucket(), session.default_bucket_prefix]))
    return place_below(f"s3://{default}", is_prefix=True)


def place_below(uri: str, *, is_prefix: bool) -> str:
    """Return the S3 URI for code below a URI; unless `is_prefix`, only its bucket counts, as in V2's output_path."""
    place = urlsplit(uri)
    return "/".join(filter(None, ["s3:/", place.netloc, place.path.strip("/") if is_prefix else "", "source"]))


def code_uri(place: str, content: str) -> str:
    """Return the S3 URI of one version of the code, from `code_place` and a name for its content."""
    return f"{place}/{content}/{_ARCHIVE}"
