"""One signed request to the platform, without the second that making a SageMaker client takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import URLLib3Session

from estimators.local.access import Access
from estimators.local.chaos.requests import PLATFORM_AGENT

_ANSWER_SECONDS = 10


def ask(access: Access, operation: str, request: Mapping[str, Any], *, service: str = "SageMaker") -> dict[str, Any]:
    """Call an operation of the platform, and return its answer.

    ``service`` is the prefix of the operation's name; the platform's own operations have ``SmddpLocal``. Raise
    ClientError if the platform refuses, BotoCoreError if nobody answers, ValueError if another program answers.
    """
    message = AWSRequest(
        method="POST",
        url=access.endpoint_url,
        data=json.dumps(request).encode(),
        headers={
            "Content-Type": "application/x-amz-json-1.1",
            "User-Agent": PLATFORM_AGENT,
            "X-Amz-Target": f"{service}.{operation}",
        },
    )
    keys = Credentials(access.keys.access_key, access.keys.secret_key)
    SigV4Auth(keys, "sagemaker", access.region).add_auth(message)
    response = URLLib3Session(proxies={}, timeout=_ANSWER_SECONDS).send(message.prepare())
    answer = json.loads(response.content or b"{}")
    if not isinstance(answer, dict):
        raise ValueError(f"{access.endpoint_url} answers as no platform does")
    if response.status_code == 200:
        return answer
    if not {"__type", "message"} <= answer.keys():
        raise ValueError(f"{access.endpoint_url} answers {response.status_code}, as no platform does")
    raise ClientError({"Error": {"Code": answer["__type"], "Message": answer["message"]}}, operation)


def answers(access: Access) -> bool:
    """Return whether a platform answers at this address and accepts these keys."""
    try:
        return "TrainingJobSummaries" in ask(access, "ListTrainingJobs", {"MaxResults": 1})
    except (BotoCoreError, ClientError, ValueError):  # nobody, another program, or another platform
        return False
