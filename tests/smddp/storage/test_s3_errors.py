"""What is said of S3's errors."""

from __future__ import annotations

from botocore.exceptions import EndpointConnectionError, InvalidRegionError
from urllib3.exceptions import LocationParseError

from smddp.storage.s3_errors import explain


def test_nothing_of_a_password_in_a_url_is_said() -> None:
    url = "http://me:p@ss@10.0.0.1:9000/bucket/key"
    for error in (
        EndpointConnectionError(endpoint_url=url),
        LocationParseError(url),
        InvalidRegionError(region_name=url),
    ):
        message = explain("could not read s3://bucket/key", error, {}).message
        assert "http://***@10.0.0.1:9000/bucket/key" in message
        assert "ss@" not in message
