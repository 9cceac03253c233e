"""R17: CreateTrainingJob over HTTP, drawn from AWS's model of the service and damaged: no 500, no hang.

Half of the requests are damaged at one place, by a value that no model allows. Jobs that are taken run to their end, or
fail as they should: their bucket is not there.

    python -m tests.torture R17 --fuzzed-requests 5000
"""

from __future__ import annotations

import copy
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.httpsession import URLLib3Session

from estimators.local import LocalSageMaker
from tests.estimators.local.engine.training.test_request import REQUEST
from tests.estimators.local.engine.training.test_supported_fields import SHAPE, drawn
from tests.estimators.local.submitted_jobs import await_end, await_that, submit
from tests.torture.outcome import Outcome

_AT_ONCE = 4
_ANSWER_SECONDS = 30
_END_SECONDS = 300
_JUNK = (
    *(None, True, -1, 0, 2**31, 2**63, 10**400, 0.5, 1e308, "", " ", "\0", "../..", "a" * 70_000, "\ud800", "é\u202e"),
    *([], {}, [[]], [None], {"": ""}, {"a": {"a": {}}}, [[[[[[[[]]]]]]]], "s3://", "s3://b/" + "a/" * 600),
)
"""What no model allows, or few."""


def fuzz(platform: LocalSageMaker, *, requests: int, seed: int) -> Outcome:
    """Send so many requests, wait for the jobs of those that were taken, and see that the platform still trains.

    Args:
        platform: Where.
        requests: How many.
        seed: Of what is drawn.
    """
    numbers = range(requests)
    sender = _Sender(platform)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = list(threads.map(lambda number: sender.send(_request(number, seed)), numbers))
    failures = [
        f"request {number} of seed {seed}: {why}" for number, (_, why) in zip(numbers, answers, strict=True) if why
    ]
    client = platform.boto_session.client("sagemaker")

    def running() -> list[Any]:
        statuses = ("InProgress", "Stopping")
        pages = [client.list_training_jobs(StatusEquals=status)["TrainingJobSummaries"] for status in statuses]
        return [job for page in pages for job in page]

    await_that(lambda: not running(), lambda: f"still running: {running()}", seconds=_END_SECONDS, pause=0.5)
    if (last := await_end(platform, submit(platform, "true")))["TrainingJobStatus"] != "Completed":
        failures.append(f"a plain job is then {last['TrainingJobStatus']}: {last.get('FailureReason')}")
    notes = ", ".join(f"{number} × {code}" for code, number in Counter(code for code, _ in answers).most_common())
    return Outcome(done=requests, unit="requests", notes=notes, failures=tuple(failures))


def _request(number: int, seed: int) -> dict[str, Any]:
    chance = random.Random(f"{seed}/{number}")
    request = {**REQUEST, **drawn(SHAPE, chance, share=0.08), "TrainingJobName": f"fuzz-{number}"}
    if number % 2:
        request = copy.deepcopy(request)
        container, key = chance.choice(list(_places(request)))
        container[key] = chance.choice(_JUNK)
    return request


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place in a document: the object or list that it is in, and its key there."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


class _Sender:
    """Sends what no client of AWS's would, from several threads."""

    def __init__(self, platform: LocalSageMaker) -> None:
        self._url = platform.endpoint_url
        self._signer = SigV4Auth(platform.boto_session.get_credentials(), "sagemaker", "us-east-1")
        self._own = threading.local()

    def send(self, request: dict[str, Any]) -> tuple[str, str]:
        """Send one; the code of its answer, and what is wrong with that."""
        if not hasattr(self._own, "session"):
            self._own.session = URLLib3Session(proxies={}, timeout=_ANSWER_SECONDS)
        headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "SageMaker.CreateTrainingJob"}
        message = AWSRequest("POST", self._url, headers, json.dumps(request).encode())
        self._signer.add_auth(message)
        try:
            answer = self._own.session.send(message.prepare())
            document = json.loads(answer.content)
        except Exception as error:
            return type(error).__name__, f"{type(error).__name__}: {error}"
        code = document.get("__type", "taken")
        right = answer.status_code == 400 if "__type" in document else "TrainingJobArn" in document
        return code, "" if right else f"{answer.status_code} {answer.content[:300]!r}"
