"""The S3 client: boto3's, with every wait bounded.

boto3 finds credentials, region and endpoint as usual: in the role, the environment (AWS_REGION, AWS_ENDPOINT_URL_S3,
AWS_PROFILE) or the configuration files. The AWS CRT is not used: its transfers ignore the configured endpoint
(boto/boto3#4839), it hangs after a fork, and it is not faster (benchmarks/s3_transfer.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MOST_CONNECTIONS = 64
"""Connections kept open between requests, at most."""

_CONNECT_SECONDS = 10.0


def connect(*, timeout: float = 30.0) -> S3Client:
    """Create a client without retries of its own (see `smddp.storage.s3_retries`).

    `timeout` is the seconds to wait for the next bytes, or to send the next mebibyte; connecting takes ten at most.
    Raise BotoCoreError if the AWS configuration is invalid.
    """
    config = Config(
        connect_timeout=min(timeout, _CONNECT_SECONDS),
        read_timeout=timeout,
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=MOST_CONNECTIONS,
        tcp_keepalive=True,
        # Each write carries a CRC32 of our own, and readers verify the bytes by their own digests.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # The SHA-256 of an upload would cost ten times a memory copy.
        s3={"payload_signing_enabled": False},
    )
    # A new session: boto3's default session is not thread-safe.
    return boto3.session.Session().client("s3", config=config)
