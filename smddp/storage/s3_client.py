"""The client that speaks to S3: boto3's, with every wait bounded.

Credentials, region and endpoint come from where boto3 takes them: the role, the environment (AWS_REGION,
AWS_ENDPOINT_URL_S3, AWS_PROFILE) or the configuration files. The CRT is not used: boto3's transfers by it go to AWS
whatever the endpoint is (boto/boto3#4839), it hangs after a fork, and it is not faster (benchmarks/s3_transfer.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MOST_CONNECTIONS = 64
"""Connections that stay open between requests."""

_CONNECT_SECONDS = 10.0


def connect(*, timeout: float = 30.0) -> S3Client:
    """Make a client. It asks once: `smddp.storage.s3_retries` decides how often is asked again.

    Args:
        timeout: Seconds until the next bytes must come, or the next mebibyte must have gone; a connection must stand
            after ten of them at most.

    Raises:
        BotoCoreError: The AWS configuration is not possible.
    """
    config = Config(
        connect_timeout=min(timeout, _CONNECT_SECONDS),
        read_timeout=timeout,
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=MOST_CONNECTIONS,
        tcp_keepalive=True,
        # Each request that writes carries a CRC32 of its own, and what is read is verified by the reader.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # The SHA-256 of all that is uploaded would cost ten times a memory copy.
        s3={"payload_signing_enabled": False},
    )
    # A session of its own: boto3's default session is not safe among threads.
    return boto3.session.Session().client("s3", config=config)
