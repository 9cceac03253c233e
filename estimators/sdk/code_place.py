"""Where the SDK uploads the code of a job to, V2's ``PyTorch`` and what is built here for V3."""

from __future__ import annotations

from urllib.parse import urlsplit


def code_prefix(code_location: str | None, output_path: str, *, default_output: bool, job_name: str) -> tuple[str, str]:
    """Return the bucket and the key prefix of a job's code.

    Args:
        code_location: The parameter of that name.
        output_path: Where its output goes.
        default_output: Whether `output_path` is the session's default, whose prefix counts, too.
        job_name: The job's name.
    """
    place = urlsplit(code_location or output_path)
    prefix = place.path.strip("/") if code_location or default_output else ""
    return place.netloc, "/".join(filter(None, [prefix, job_name, "source"]))


def code_uri(code_location: str | None, output_path: str, *, default_output: bool, job_name: str) -> str:
    """Return the S3 URI of a job's code, from what `code_prefix` takes."""
    bucket, prefix = code_prefix(code_location, output_path, default_output=default_output, job_name=job_name)
    return f"s3://{bucket}/{prefix}/sourcedir.tar.gz"
