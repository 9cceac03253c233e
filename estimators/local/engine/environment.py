"""The environment of a host's program, besides the executor's own variables.

Later lines win:

1. defaults that an image would set;
2. the platform's: the job's region, and the engine's ``container_environment`` (endpoint, keys);
3. the request's Environment;
4. variables that name the job, which the platform owns.
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
    """Return the environment of every host of a job, merged in the order above."""
    return {
        **_IMAGE,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        **platform,
        **requested,
        **names,
    }
