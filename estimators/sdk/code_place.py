"""Where the code of a job is uploaded to: by its content, beside the output of jobs, or in ``code_location``.

V2's ``PyTorch`` puts it below the job's own name, and so uploads the same code with each job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from estimators.sdk.library import Session

UploadCode = Callable[[], tuple[str, str] | None]
"""Uploads a job's code, if it is not there, and returns its S3 URI and its script there; None for a training recipe,
whose code the SDK has, and uploads."""

_ARCHIVE = "sourcedir.tar.gz"
"""The name by which a container without a network finds the code in its channel."""


def code_place(arguments: Mapping[str, Any], session: Session) -> str:
    """Return the S3 URI below which a session uploads the code of jobs.

    Args:
        arguments: The parameters for ``PyTorch``.
        session: Whose default bucket is taken, and made, if they name no place.
    """
    if named := arguments.get("code_location") or arguments.get("output_path"):
        return place_below(named, is_prefix=bool(arguments.get("code_location")))
    default = "/".join(filter(None, [session.default_bucket(), session.default_bucket_prefix]))
    return place_below(f"s3://{default}", is_prefix=True)


def place_below(uri: str, *, is_prefix: bool) -> str:
    """Return the place of code below an S3 URI.

    Args:
        uri: What is named as the place of code or, without one, of output.
        is_prefix: Whether its key counts, too: of an ``output_path`` only the bucket does, as with V2.
    """
    place = urlsplit(uri)
    return "/".join(filter(None, ["s3:/", place.netloc, place.path.strip("/") if is_prefix else "", "source"]))


def code_uri(place: str, content: str) -> str:
    """Return the S3 URI of one code.

    Args:
        place: From `code_place`.
        content: What tells it from other code.
    """
    return f"{place}/{content}/{_ARCHIVE}"
