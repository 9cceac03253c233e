"""Every operation of SageMaker's model is answered by ours, by a true record, or by a refusal in AWS's form."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from botocore.model import ListShape, MapShape, Shape, StructureShape

from estimators.local import LocalSageMaker
from estimators.local.api.offered import OFFERS
from estimators.local.engine.validation import operation_model, service_model

OPERATIONS = tuple(service_model().operation_names)
OFFERED = {operation for offer in OFFERS if offer.service == "sagemaker" for operation in offer.operations}
CLOUDWATCH = "/service/GraniteServiceVersion20100801/operation/"
MEMORY = 64 << 20
"""What the server may grow by over all of this."""


@pytest.fixture(scope="module")
def platform() -> Iterator[LocalSageMaker]:
    """A server in a process that nothing else has a part in."""
    with LocalSageMaker() as platform:
        yield platform


def test_every_operation_is_answered_whatever_it_is_sent(platform: LocalSageMaker) -> None:
    platform.boto_session.client("sagemaker").list_models()  # moto reads its own modules once
    before = resident(platform)
    requests = [(operation, body) for operation in OPERATIONS for body in bodies(operation)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda request: send(platform, *request), requests))
    for (operation, body), (status, content) in zip(requests, answers, strict=True):
        told = f"{operation} {body[:200]!r}: {status} {content[:300]!r}"
        assert 200 <= status < 500, told
        answer = json.loads(content or b"{}")
        assert isinstance(answer, dict), told
        if status != 200:
            assert answer["__type"] and (answer.get("message") or answer["Message"]), told
        if operation not in OFFERED:
            assert answer["__type"] == "UnsupportedOperation", told
            assert operation in answer["message"], told
    assert platform.boto_session.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []
    assert resident(platform) - before < MEMORY


def bodies(operation: str) -> Iterator[bytes]:
    """What it needs and no more, and what it can't take."""
    shape = operation_model(operation).input_shape
    assert shape is not None
    yield json.dumps(least(shape)).encode()
    yield json.dumps({name: {"a": [1, None]} for name in shape.members}).encode()
    yield json.dumps(dict.fromkeys(shape.members, "x" * 70_000 if operation in OFFERED else "")).encode()
    yield b'{"a": ' * 5000 + b"1" + b"}" * 5000
    yield b"\xff\x00 garbage"


def least(shape: Shape) -> Any:
    """The smallest value of a shape that is valid, as far as its form goes."""
    if isinstance(shape, StructureShape):
        names = shape.required_members or (list(shape.members)[:1] if getattr(shape, "is_tagged_union", False) else [])
        return {name: least(shape.members[name]) for name in names}
    if isinstance(shape, ListShape):
        return [least(shape.member)] * shape.metadata.get("min", 0)
    if isinstance(shape, MapShape):
        return {}
    if shape.type_name == "string":
        enum = shape.metadata.get("enum")
        if enum:
            return enum[0]
        arn = "arn:aws:sagemaker:us-east-1:123456789012:model/a"
        text = {"RoleArn": "arn:aws:iam::123456789012:role/a", "S3Uri": "s3://bucket/a"}.get(shape.name)
        return (text or (arn if "Arn" in shape.name else "a")).ljust(shape.metadata.get("min", 0), "a")
    return {"boolean": True, "timestamp": 1.0, "blob": ""}.get(shape.type_name, max(shape.metadata.get("min", 0), 0))


def send(platform: LocalSageMaker, operation: str, body: bytes, service: str = "sagemaker") -> tuple[int, bytes]:
    """Send a document that no client would; the answer must come within the deadline."""
    headers = {"X-Amz-Target": f"SageMaker.{operation}", "Content-Type": "application/x-amz-json-1.1"}
    return send_signed(platform, service, "/", body, headers)


def send_signed(
    platform: LocalSageMaker, service: str, path: str, body: bytes, headers: dict[str, str], method: str = "POST"
) -> tuple[int, bytes]:
    request = AWSRequest(method=method, url=platform.endpoint_url + path, data=body, headers=headers)
    SigV4Auth(platform.boto_session.get_credentials(), service, "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection(platform.endpoint_url.removeprefix("http://"), timeout=10)
    connection.request(method, path, body, dict(request.headers.items()))
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def resident(platform: LocalSageMaker) -> int:
    """The server's peak memory, in bytes."""
    (line,) = [
        line
        for line in Path(f"/proc/{platform.server_pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) << 10


@pytest.mark.parametrize(
    ("service", "path", "body", "headers"),
    [
        ("sts", "/", b"Action=AssumeRole&Version=2011-06-15", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("sts", "/", b"\xff&%zz=&&=", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("iam", "/", b"Action=Nonsense", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("iam", "/", b"Action=GetRole", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("ec2", "/", b"Action=RunInstances", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("dynamodb", "/", b"{}", {"X-Amz-Target": "DynamoDB_20120810.ListTables"}),
        ("logs", "/", b"{}", {"X-Amz-Target": "Logs_20140328.PutLogEvents"}),
        ("logs", "/", b'{"logEvents": 3}', {"X-Amz-Target": "Logs_20140328.PutLogEvents"}),
        ("logs", "/", b"{}", {"X-Amz-Target": "SageMaker.ListTrainingJobs"}),
        ("logs", "/", b"{}", {"X-Amz-Target": "Logs_20140328.StartLiveTail"}),
        ("monitoring", CLOUDWATCH + "PutMetricData", b"\xff", {"smithy-protocol": "rpc-v2-cbor"}),
        ("monitoring", CLOUDWATCH + "PutDashboard", b"\xa0", {"smithy-protocol": "rpc-v2-cbor"}),
        ("lambda", "/2015-03-31/functions", b"{}", {}),
        ("route53", "/2013-04-01/hostedzone", b"<a", {}),
        ("sagemaker", "/endpoints/a/invocations", b"x", {}),
        ("sagemaker", "/FeatureGroup/a", b"{}", {}),
        ("sagemaker", "/BatchPutMetrics", b"[[", {}),
        ("sagemaker", "/anything", b"", {}),
        ("", "/", b"", {}),
    ],
)
def test_other_protocols_are_refused_in_their_own_form(
    platform: LocalSageMaker, service: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    status, content = send_signed(platform, service, path, body, headers)
    assert 400 <= status < 500, content
    assert b"html" not in content.lower()
    if "X-Amz-Target" in headers:
        assert set(json.loads(content)) == {"__type", "message"}


@pytest.mark.parametrize(
    ("service", "call", "arguments"),
    [
        ("dynamodb", "list_tables", {}),
        ("ec2", "describe_instances", {}),
        ("lambda", "list_functions", {}),
        ("route53", "list_hosted_zones", {}),
        ("sts", "get_session_token", {}),
        ("cloudwatch", "list_dashboards", {}),
        ("sagemaker-runtime", "invoke_endpoint", {"EndpointName": "a", "Body": b"x"}),
        ("sagemaker", "list_endpoints", {}),
    ],
)
def test_clients_of_every_protocol_understand_a_refusal(
    platform: LocalSageMaker, service: str, call: str, arguments: dict[str, Any]
) -> None:
    client = platform.boto_session.client(service)
    with pytest.raises(ClientError) as caught:
        getattr(client, call)(**arguments)
    assert caught.value.response["Error"]["Code"] == "UnsupportedOperation"
    assert "local platform" in caught.value.response["Error"]["Message"]
    assert caught.value.response["ResponseMetadata"]["RetryAttempts"] == 0
