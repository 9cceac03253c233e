"""A real S3 server for tests: SeaweedFS in a process of its own, and clients that wait briefly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from estimators.local.api.signature import KeyPair
from estimators.local.storage import SeaweedFS


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """Where it answers, and to whom."""

    endpoint_url: str
    keys: KeyPair

    def environ(self, endpoint_url: str | None = None) -> dict[str, str]:
        """What boto3 needs to find it, or a proxy before it."""
        return {
            "AWS_ENDPOINT_URL_S3": endpoint_url or self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.keys.access_key,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def client(self) -> Any:
        """A client with boto3's own settings, to look at what is there."""
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.keys.access_key,
            aws_secret_access_key=self.keys.secret_key,
            region_name="us-east-1",
            config=Config(connect_timeout=10, read_timeout=15),
        )


@contextmanager
def s3_server(directory: Path) -> Iterator[Server]:
    """Run one whose objects lie in a directory. It ends with the thread that starts it."""
    run, keys = directory / "run", KeyPair.random()
    run.mkdir(parents=True)
    storage = SeaweedFS(data=directory / "data", run=run, keys=keys, isolated=False)
    try:
        storage.launch()
        storage.wait_until_ready()
        yield Server(endpoint_url=storage.process.endpoint_url, keys=keys)
    finally:
        storage.close()
