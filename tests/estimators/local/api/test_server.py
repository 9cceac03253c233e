import http.client
import json
import socket
from datetime import datetime, timezone

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from estimators.local.access import Access
from estimators.local.api.server import HttpServer
from estimators.local.api.signature import KeyPair
from estimators.local.chaos import Chaos
from estimators.local.engine import ApiError

KEYS = KeyPair.random()
CREATED = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc)


class RecordingEngine:
    """Stands for the engine: notes what reaches it."""

    operations = frozenset({"CreateTrainingJob", "DescribeTrainingJob", "ListTrainingJobs", "Search", "AddTags"})

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict, str]] = []
        self.interrupted: list[str] = []
        self.awaited: list[tuple[str, int, float]] = []

    def call(self, operation, request, *, region):
        self.calls.append((operation, request, region))
        if request.get("TrainingJobName") == "no-such-job":
            raise ApiError("ValidationException", "Requested resource not found.", 400)
        if request.get("TrainingJobName") == "broken":
            raise KeyError("a bug")
        if operation == "DescribeTrainingJob":
            return {"TrainingJobName": request["TrainingJobName"], "CreationTime": CREATED}
        return {}

    def interrupt(self, job_name):
        self.interrupted.append(job_name)

    def await_change(self, job_name, transitions, seconds):
        self.awaited.append((job_name, transitions, seconds))

    def bring_logs(self, streams):
        """There is no earlier one."""

    def forget_logs(self, streams):
        """Nor here."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server, its engine and its port."""
    engine = RecordingEngine()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        bodies = tmp_path_factory.mktemp("bodies")
        server = HttpServer(listener, engine=engine, keys=KEYS, body_directory=bodies, chaos=Chaos())
        server.start()
        yield engine, listener.getsockname()[1]
        server.close()


@pytest.fixture
def engine(served):
    served[0].calls.clear()
    return served[0]


@pytest.fixture(scope="module")
def port(served):
    return served[1]


@pytest.fixture(scope="module")
def session(port):
    url = f"http://127.0.0.1:{port}"
    return Access(endpoint_url=url, s3_endpoint_url=url, keys=KEYS, region="us-east-1").boto_session()


@pytest.fixture(scope="module")
def bucket(session):
    bucket = session.resource("s3").create_bucket(Bucket="bucket")
    bucket.put_object(Key="key", Body=b"kept")
    return bucket


def send(port: int, method: str = "POST", path: str = "/", body: bytes = b"{}", **headers: str):
    """Send a request as it is; its status and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, names)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, dict(response.getheaders())


def signed_headers(
    port: int, keys: KeyPair = KEYS, *, host: str = "127.0.0.1", path: str = "/", body: bytes = b"{}"
) -> dict[str, str]:
    target = {"X-Amz-Target": "SageMaker.CreateTrainingJob", "Content-Type": "application/x-amz-json-1.1"}
    request = AWSRequest(method="POST", url=f"http://{host}:{port}{path}", data=body, headers=target)
    SigV4Auth(Credentials(keys.access_key, keys.secret_key), "sagemaker", "us-east-1").add_auth(request)
    return dict(request.headers.items())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_answers_signed_requests_under_its_own_names(port, engine, host):
    status, _ = send(port, **signed_headers(port, host=host), Host=f"{host}:{port}")
    assert status == 200
    assert [operation for operation, _, _ in engine.calls] == ["CreateTrainingJob"]


def refused_requests(port: int):
    good = signed_headers(port)
    unsigned = {name: value for name, value in good.items() if name != "Authorization"}
    evil = "http://evil.example"
    preflight = {"Origin": evil, "Access-Control-Request-Method": "POST"}
    yield "foreign origin", dict(**good, Origin=evil)
    yield "own origin", dict(**good, Origin=f"http://127.0.0.1:{port}")
    yield "opaque origin", dict(**good, Origin="null")
    yield "foreign host", dict(**signed_headers(port, host="evil.example"), Host=f"evil.example:{port}")
    yield "another port's host", dict(**signed_headers(port + 1), Host=f"127.0.0.1:{port + 1}")
    yield "unsigned", unsigned
    yield "wrong key", signed_headers(port, KeyPair.random())
    yield "wrong secret", signed_headers(port, KeyPair(access_key=KEYS.access_key, secret_key="guess"))
    yield "altered signature", {**good, "Authorization": good["Authorization"][:-1] + "?"}
    yield "altered target", {**good, "X-Amz-Target": "SageMaker.DeleteTrainingJob"}
    yield "altered body", dict(**good, body=b'{"TrainingJobName": "other"}')
    yield "preflight", dict(method="OPTIONS", **preflight)
    yield "preflight to S3", dict(method="OPTIONS", path="/bucket/key", **preflight)
    yield "moto's reset", {"method": "POST", "path": "/moto-api/reset"}
    yield "moto's reset, signed", dict(path="/moto-api/reset", **signed_headers(port, path="/moto-api/reset"))
    yield "moto's reset, in disguise", dict(path="/%6doto-api/reset", **signed_headers(port, path="/%6doto-api/reset"))
    yield "metadata", {"method": "GET", "path": "/latest/meta-data/iam/security-credentials/"}
    yield "unsigned S3", {"method": "GET", "path": "/bucket/key"}
    yield "absolute form", dict(path=f"http://127.0.0.1:{port}/", **good)


@pytest.mark.parametrize("name", [name for name, _ in refused_requests(1)])
def test_refuses_everything_else_without_side_effects(port, engine, bucket, name):
    status, headers = send(port, **dict(refused_requests(port))[name])
    assert status == 403
    assert not [header for header in headers if header.lower().startswith("access-control")]
    assert engine.calls == []
    assert [item.key for item in bucket.objects.all()] == ["key"]


def test_says_to_a_web_page_that_it_is_one(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/", b"{}", {**signed_headers(port), "Origin": "http://evil.example"})
    assert "Requests from web pages are refused." in connection.getresponse().read().decode()
    connection.close()


def test_says_what_was_wrong_in_the_callers_language(session, port):
    wrong = {"aws_access_key_id": "OTHER", "aws_secret_access_key": "x"}
    for service, call in (("sagemaker", "list_training_jobs"), ("s3", "list_buckets"), ("sts", "get_caller_identity")):
        with pytest.raises(ClientError) as caught:
            getattr(session.client(service, **wrong), call)()
        assert caught.value.response["Error"]["Code"] == "InvalidClientTokenId", service


def test_gives_times_as_the_protocol_demands(session):
    job = session.client("sagemaker").describe_training_job(TrainingJobName="a")
    assert job["CreationTime"] == CREATED
    assert job["ResponseMetadata"]["RequestId"]


def test_tells_the_engine_the_region_of_the_request(session, engine):
    session.client("sagemaker", region_name="eu-west-1").list_training_jobs(MaxResults=3)
    assert engine.calls == [("ListTrainingJobs", {"MaxResults": 3}, "eu-west-1")]


def test_gives_the_engines_errors_and_its_bugs_as_aws_would(session):
    client = session.client("sagemaker", config=Config(retries={"total_max_attempts": 1}))
    with pytest.raises(ClientError, match="Requested resource not found"):
        client.describe_training_job(TrainingJobName="no-such-job")
    with pytest.raises(ClientError, match=r"InternalFailure.*a bug"):
        client.describe_training_job(TrainingJobName="broken")


def nested(levels: int) -> bytes:
    return b'{"a": ' * (levels - 1) + b"{}" + b"}" * (levels - 1)


def test_takes_json_of_a_hundred_levels(port, engine):
    assert send(port, body=nested(100), **signed_headers(port, body=nested(100)))[0] == 200
    assert len(engine.calls) == 1


@pytest.mark.parametrize(
    "body",
    [b"not JSON", b"[]", b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"a": "\xff"}', nested(101), nested(100_000)],
    ids=["text", "list", "NaN", "surrogate", "no UTF-8", "deep", "very deep"],
)
def test_refuses_a_body_that_is_no_json_object(port, engine, body):
    assert send(port, body=body, **signed_headers(port, body=body))[0] == 400
    assert engine.calls == []


def test_leaves_to_moto_what_is_not_about_training_jobs(session, engine):
    client = session.client("sagemaker")
    client.create_model(ModelName="m", ExecutionRoleArn="arn:aws:iam::123456789012:role/r")
    arn = client.describe_model(ModelName="m")["ModelArn"]
    client.add_tags(ResourceArn=arn, Tags=[{"Key": "a", "Value": "b"}])
    assert client.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "a", "Value": "b"}]
    assert engine.calls == []
    client.add_tags(ResourceArn=arn.replace(":model/", ":training-job/"), Tags=[{"Key": "a", "Value": "b"}])
    client.search(Resource="TrainingJob")
    assert [operation for operation, _, _ in engine.calls] == ["AddTags", "Search"]


def test_serves_s3_as_boto3_speaks_it(session, port, tmp_path):
    s3 = session.client("s3")
    s3.create_bucket(Bucket="speaks")
    path = tmp_path / "big"
    path.write_bytes(b"0123456789" * 1_500_000)  # more than one part
    s3.upload_file(str(path), "speaks", "a folder/größe+1", ExtraArgs={"Metadata": {"under_score": "1", "a-b": "c  d"}})
    head = s3.head_object(Bucket="speaks", Key="a folder/größe+1")
    assert head["ContentLength"] == 15_000_000
    assert head["Metadata"]["under_score"] == "1"
    with path.open("rb") as stream:
        s3.put_object(Bucket="speaks", Key="streamed", Body=stream, ChecksumAlgorithm="SHA256")
    s3.put_object(Bucket="speaks", Key="empty", Body=b"")
    s3.copy_object(Bucket="speaks", Key="copy", CopySource={"Bucket": "speaks", "Key": "streamed"})
    s3.download_file("speaks", "copy", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket="speaks")["Contents"]]
    assert keys == ["a folder/größe+1", "copy", "empty", "streamed"]
    s3.delete_objects(Bucket="speaks", Delete={"Objects": [{"Key": key} for key in keys]})


def test_serves_presigned_urls(session, port):
    s3 = session.client("s3", config=Config(signature_version="s3v4"))
    s3.create_bucket(Bucket="presigned")
    put = s3.generate_presigned_url("put_object", {"Bucket": "presigned", "Key": "a b"})
    get = s3.generate_presigned_url("get_object", {"Bucket": "presigned", "Key": "a b"})
    base = f"http://127.0.0.1:{port}"
    assert send(port, "PUT", put.removeprefix(base), b"there")[0] == 200
    assert send(port, "GET", get.removeprefix(base), b"")[0] == 200
    assert send(port, "GET", get.removeprefix(base).replace("a%20b", "other"), b"")[0] == 403
    assert send(port, "GET", get.removeprefix(base), b"", Origin="http://evil.example")[0] == 403


def ask_platform(port, operation, document):
    """The status of the answer to one of the platform's own operations."""
    body = json.dumps(document).encode()
    url, headers = f"http://127.0.0.1:{port}/", {"X-Amz-Target": f"SmddpLocal.{operation}"}
    request = AWSRequest(method="POST", url=url, data=body, headers=headers)
    SigV4Auth(Credentials(KEYS.access_key, KEYS.secret_key), "sagemaker", "us-east-1").add_auth(request)
    return send(port, body=body, **dict(request.headers.items()))[0]


def test_interrupts_a_job_on_a_signed_request(port, engine):
    assert ask_platform(port, "InterruptTrainingJob", {"TrainingJobName": "spot"}) == 200
    assert engine.interrupted == ["spot"]


def test_waits_for_a_change_of_a_job(port, engine):
    assert ask_platform(port, "AwaitChange", {"TrainingJobName": "a", "Transitions": 2, "Seconds": 0.5}) == 200
    assert engine.awaited == [("a", 2, 0.5)]


@pytest.mark.parametrize(
    "wrong", [{"Transitions": "2"}, {"Seconds": 5.1}, {"Seconds": -1}, {"Seconds": float("nan")}, {"Seconds": None}]
)
def test_refuses_a_wait_of_another_kind(port, engine, wrong):
    asked = {"TrainingJobName": "a", "Transitions": 2, "Seconds": 0.5, **wrong}
    awaited = len(engine.awaited)
    assert ask_platform(port, "AwaitChange", asked) == 400
    assert len(engine.awaited) == awaited


def test_a_plain_boto3_session_with_the_keys_is_enough(port, engine):
    client = boto3.client(
        "sagemaker",
        endpoint_url=f"http://localhost:{port}",
        aws_access_key_id=KEYS.access_key,
        aws_secret_access_key=KEYS.secret_key,
        region_name="us-west-2",
    )
    client.list_training_jobs()
    assert engine.calls == [("ListTrainingJobs", {}, "us-west-2")]
