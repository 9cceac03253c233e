"""Every operation of SageMaker's model is answered by ours, by a true record, or by a refusal in AWS's form."""

from __future__ import annotations

import concurrent.futures
import hashlib
import http.client
import json
import random
import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from botocore.model import ListShape, MapShape, Shape, StructureShape

from estimators.local import LocalSageMaker
from estimators.local.api.offered import OFFERS
from estimators.local.api.signature import ALGORITHM, KeyPair, Request, sign_without
from estimators.service_model import service_model

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


@pytest.mark.slow
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
    shape = service_model().operation_model(operation).input_shape
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
    signer = S3SigV4Auth if service == "s3" else SigV4Auth
    signer(platform.boto_session.get_credentials(), service, "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection(platform.endpoint_url.removeprefix("http://"), timeout=60)
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
        ("sagemaker", "/BatchPutMetrics", b'{"TrialComponentName": "a", "MetricData": [{"Value": "x"}]}', {}),
        ("sagemaker", "/BatchGetMetrics", b"{}", {}),
        ("sagemaker", "/anything", b"", {}),
        ("sagemaker", "/", b"Action=CreateTrainingJob", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("s3", "/", b"{}", {"X-Amz-Target": "SageMaker.CreateEndpoint"}),
        ("s3", "/", b"{}", {"X-Amz-Target": "SageMaker.ListTrainingJobs"}),
        ("sts", "/", b'{"TrainingJobName": "a"}', {"X-Amz-Target": "SmddpLocal.InterruptTrainingJob"}),
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


@pytest.mark.parametrize("target", ["*", "bucket", "bucket/key", "?list-type=2", "http:", "http://[", "//["])
@pytest.mark.parametrize("service", ["s3", "sagemaker"])
def test_a_target_without_a_path_is_refused(platform: LocalSageMaker, service: str, target: str) -> None:
    status, content = send_raw(platform, service, "GET", target, {})
    assert 400 <= status < 500, content
    assert b"html" not in content.lower()


@pytest.mark.slow
def test_a_malformed_request_to_s3_is_refused_and_no_bug(platform: LocalSageMaker) -> None:
    platform.boto_session.client("s3").put_object(Bucket=platform.default_bucket, Key="key", Body=b"content")
    chance = random.Random(5)
    for _ in range(400):
        bucket, key = chance.choice((platform.default_bucket, *BUCKETS)), chance.choice(KEYS)
        target = f"{bucket}{key}{'?'.join(('', *chance.sample(QUERIES, chance.randrange(3))))}"
        headers = dict(chance.sample(HEADERS, chance.randrange(4)))
        method = chance.choice(METHODS)
        status, content = send_raw(platform, "s3", method, f"/{target}", headers, chance.choice(BODIES))
        told = f"{method} {target} {headers}: {status} {content[:300]!r}"
        assert 200 <= status < 500, told
        assert b"<html" not in content.lower(), told


METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "get", "G(T", "__init__")
BUCKETS = ("", "none", "a_b", "%", "%00", "%ff", "..", "v20180820", "service", "B" * 300, "moto-api")
KEYS = ("", "/", "/key", "//", "/../key", "/%00", "/%ff%fe", "/%c3%bc", "/" + "k" * 2000, "/a;b", "/operation/Get")
QUERIES = (
    "list-type=2&max-keys=x",
    "versions&key-marker=%ff",
    "uploads",
    "uploadId=none&partNumber=x",
    "partNumber=-1",
    "delete",
    "acl",
    "tagging",
    "policy",
    "lifecycle",
    "versionId=%00",
    "Action=CreateTrainingJob",
    "&&=&%",
    "select&select-type=2",
    "response-expires=%0d%0a",
    "continuation-token=%ff",
    "restore",
    "encryption",
    "notification",
    "replication",
    "cors",
)
HEADERS = (
    ("x-amz-target", "SageMaker.CreateEndpoint"),
    ("x-amz-target", ".."),
    ("x-amz-copy-source", "%"),
    ("x-amz-copy-source", "/none"),
    ("range", "bytes=9-1"),
    ("range", "lines=x"),
    ("x-amz-tagging", "a=%ff&a=b&&"),
    ("x-amz-acl", "nobody"),
    ("x-amz-decoded-content-length", "x"),
    ("content-md5", "?"),
    ("smithy-protocol", "rpc-v2-cbor"),
    ("if-modified-since", "yesterday"),
    ("x-amz-object-lock-retain-until-date", "never"),
    ("x-amz-expected-bucket-owner", "-"),
    ("x-amz-server-side-encryption", "none"),
    ("x-amz-checksum-sha256", "?"),
    ("x-amz-meta-\xff", "\xfe"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "multipart/form-data"),
    ("content-encoding", "aws-chunked"),
    ("x-amz-grant-read", "everybody"),
    ("x-amz-website-redirect-location", "\x01"),
    ("transfer-encoding", "gzip"),
)
BODIES = (b"", b"<", b"<a/>", b"\xff\x00", b"{}", b"Action=CreateTrainingJob", b"<Delete><Object/></Delete>")


def send_raw(
    platform: LocalSageMaker, service: str, method: str, target: str, headers: dict[str, str], body: bytes = b""
) -> tuple[int, bytes]:
    """Send a signed request that no client can be made to send; status 0 if there is no answer."""
    credentials = platform.boto_session.get_credentials()
    keys = KeyPair(access_key=credentials.access_key, secret_key=credentials.secret_key)
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    address = platform.endpoint_url.removeprefix("http://")
    digest = hashlib.sha256(body).hexdigest()
    headers = {**headers, "host": address, "x-amz-date": now, "x-amz-content-sha256": digest}
    credential = f"{keys.access_key}/{now[:8]}/us-east-1/{service}/aws4_request"
    unsigned = f"{ALGORITHM} Credential={credential}, SignedHeaders={';'.join(sorted(headers))}, Signature="
    path, _, query = target.partition("?")
    request = Request(
        method=method,
        path=path,
        query=query,
        headers={**headers, "authorization": unsigned},
        body_sha256=lambda: digest,
    )
    headers |= {"authorization": sign_without(request, keys, ()), "content-length": str(len(body))}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    host, _, port = address.partition(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as client:
        client.sendall("\r\n".join(lines).encode("latin-1") + body)
        head, _, content = client.makefile("rb").read().partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, content


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
