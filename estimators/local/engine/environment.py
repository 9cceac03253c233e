"""What a host's program finds in its environment, besides what the executor has to tell it.

Later lines win:

1. what an image sets;
2. the platform's: the job's region, and the variables that the engine was given (endpoint, keys);
3. the request's Environment;
4. what names the job, which the platform owns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_IMAGE = {
    "PYTHONUNBUFFERED": "1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


def host_environment(
    *, names: Mapping[str, str], region: str, platform: Mapping[str, str], requested: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of every host of a job.

    Args:
        names: What names the job.
        region: The job's AWS region.
        platform: The engine's ``container_environment``.
        requested: The request's Environment.
    """
    return {
        **_IMAGE,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        **platform,
        **requested,
        **names,
    }
