import hashlib
import socket
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import boto3
import pytest
import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    IncompleteReadError,
    ResponseStreamingError,
)

from estimators.local.api import bounded_server
from estimators.local.api.bounded_server import MAX_CONNECTIONS
from estimators.local.api.signature import KeyPair, Request, SignatureError, verify
from estimators.local.chaos import Chaos, Throttle
from estimators.local.errors import StorageEndedError
from estimators.local.storage import Gateway
from estimators.local.storage.gateway import _problem_of_key, has_common_prefixes

KEYS = KeyPair.random()


def digest(body):
    return hashlib.sha256(body).hexdigest


class Upstream(BaseHTTPRequestHandler):
    """Stands for SeaweedFS: checks the signature, keeps what it got, answers an upload and a small list."""

    protocol_version = "HTTP/1.1"
    got: list[tuple[str, dict[str, str], bytes]]

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        path, _, query = self.path.partition("?")
        self.got.append((self.path, headers, body))
        try:
            request = Request(method=self.command, path=path, query=query, headers=headers, body_sha256=digest(body))
            verify(request, KEYS)
        except SignatureError:
            self.answer(403, b"")
            return
        if path.startswith("/b/chunked"):
            self.answer_in_chunks([b"5\r\nwhole\r\n", *([] if path.endswith("-cut") else [b"0\r\n\r\n"])])
            self.close_connection = True
        elif path.startswith("/b/cut-"):
            self.answer(200, bytes(int(path.rpartition("-")[2])), missing=1)
            self.close_connection = True
        else:
            self.answer(200, body if self.command == "GET" else b"")

    def answer(self, status, content, missing=0):
        self.send_response_only(status)
        self.send_header("ETag", '"tag"')
        self.send_header("Content-Length", str(len(content) + missing))
        self.end_headers()
        self.wfile.write(content)

    def answer_in_chunks(self, chunks):
        self.send_response_only(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(chunk)

    do_GET = do_PUT = handle_any  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def upstream():
    handler = type("Handler", (Upstream,), {"got": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield handler.got, lambda: socket.create_connection(("127.0.0.1", server.server_port))
    server.shutdown()
    server.server_close()


@pytest.fixture
def chaos():
    return Chaos()


@pytest.fixture
def gateway(upstream, chaos):
    gateway = Gateway(connect=upstream[1], keys=KEYS, chaos=chaos)
    gateway.start()
    yield gateway
    gateway.close()


def client(gateway: Gateway, keys: KeyPair = KEYS):
    return boto3.client(
        "s3",
        endpoint_url=gateway.endpoint_url,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def test_encryption_by_awss_own_key_is_left_out_and_the_request_signed_anew(gateway, upstream):
    client(gateway).put_object(Bucket="b", Key="sourcedir.tar.gz", Body=b"code", ServerSideEncryption="aws:kms")
    ((path, headers, body),) = upstream[0]
    assert (path, body) == ("/b/sourcedir.tar.gz", b"code")
    assert not [name for name in headers if name.startswith("x-amz-server-side")]


def test_any_other_request_goes_on_unchanged(gateway, upstream):
    client(gateway).put_object(Bucket="b", Key="a b+c/ü", Body=b"x" * 3_000_000, Metadata={"who": "me"})
    ((path, headers, body),) = upstream[0]
    assert path == "/b/a%20b%2Bc/%C3%BC"
    assert (headers["x-amz-meta-who"], len(body)) == ("me", 3_000_000)


def test_a_wish_for_encryption_by_a_stranger_is_not_signed(gateway, upstream):
    stranger = KeyPair(access_key=KEYS.access_key, secret_key="guessed")
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client(gateway, stranger).put_object(Bucket="b", Key="k", Body=b"x", ServerSideEncryption="aws:kms")
    assert upstream[0] == []


def test_an_answer_without_a_length_gets_one(gateway):
    answer = client(gateway).get_object(Bucket="b", Key="chunked")
    assert (answer["ContentLength"], answer["Body"].read()) == (5, b"whole")


@pytest.mark.parametrize("key", ["cut-0", "cut-9", "chunked-cut"])
def test_of_a_small_answer_that_is_cut_off_nothing_is_said(gateway, key):
    with pytest.raises(ConnectionClosedError):
        client(gateway).get_object(Bucket="b", Key=key)


@pytest.mark.timeout(60)  # the connection ends with the answer; one that is idle is kept for longer
def test_a_large_answer_that_is_cut_off_ends_its_connection(gateway, monkeypatch):
    monkeypatch.setattr(bounded_server, "HEAD_SECONDS", 120.0)
    answer = client(gateway).get_object(Bucket="b", Key=f"cut-{2 << 20}")
    with pytest.raises((ResponseStreamingError, IncompleteReadError)):
        answer["Body"].read()


@pytest.mark.parametrize(
    ("command", "target", "expected"),
    [
        ("GET", "/b?list-type=2&prefix=a&delimiter=%2F", True),
        ("GET", "/b/?delimiter=%2F", True),
        ("GET", "/b?list-type=2", False),
        ("GET", "/b/key?delimiter=%2F", False),
        ("PUT", "/b?delimiter=%2F", False),
    ],
)
def test_only_lists_by_a_delimiter_have_common_prefixes(command, target, expected):
    assert has_common_prefixes(command, target) is expected


def test_a_request_without_a_signature_is_refused(gateway, upstream):
    connection = HTTPConnection(urlsplit(gateway.endpoint_url).netloc)
    connection.request("GET", "/status")
    assert connection.getresponse().status == 403
    assert upstream[0] == []


def test_a_presigned_url_needs_no_more(gateway, upstream):
    urllib3.request("GET", client(gateway).generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"}))
    ((path, _, _),) = upstream[0]
    assert path.startswith("/b/k?")


def test_a_stranger_is_refused_before_the_body_comes(gateway, upstream):
    stranger = KeyPair(access_key=KEYS.access_key, secret_key="guessed")
    signed = sign(stranger, urlsplit(gateway.endpoint_url).netloc)
    connection = HTTPConnection(urlsplit(gateway.endpoint_url).netloc, timeout=10)
    connection.putrequest("PUT", "/b/k", skip_host=True, skip_accept_encoding=True)
    for name, value in {**signed, "Content-Length": str(5 << 30)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 403
    assert upstream[0] == []


def sign(keys: KeyPair, host: str) -> dict[str, str]:
    """The headers of a PUT to /b/k with a wish for encryption."""
    request = AWSRequest("PUT", f"http://{host}/b/k", {"Host": host, "x-amz-server-side-encryption": "aws:kms"})
    S3SigV4Auth(Credentials(keys.access_key, keys.secret_key), "s3", "us-east-1").add_auth(request)
    return dict(request.headers)


@pytest.mark.parametrize("length", ["-1", "many", "1e3"])
def test_a_length_that_is_none_is_refused(gateway, upstream, length):
    connection = HTTPConnection(urlsplit(gateway.endpoint_url).netloc, timeout=10)
    connection.putrequest("PUT", "/b/k")
    connection.putheader("Content-Length", length)
    connection.endheaders()
    assert connection.getresponse().status == 400


def test_idle_connections_give_way_to_new_ones(gateway, upstream):
    address = urlsplit(gateway.endpoint_url)
    idle = [socket.create_connection((address.hostname, address.port), 10) for _ in range(MAX_CONNECTIONS + 10)]
    client(gateway).put_object(Bucket="b", Key="k", Body=b"x")
    assert len(upstream[0]) == 1
    assert idle[0].recv(1) == b""
    for connection in idle:
        connection.close()


def test_a_web_page_is_refused(gateway, upstream):
    connection = HTTPConnection(urlsplit(gateway.endpoint_url).netloc)
    connection.request("GET", "/b", headers={"Origin": "http://evil.example"})
    assert connection.getresponse().status == 403
    assert upstream[0] == []


def test_why_there_is_no_storage_any_more_is_told_to_each_client(gateway_without_storage):
    with pytest.raises(ClientError, match=r"ServiceUnavailable.*weed <died>\nStart the local platform again"):
        client(gateway_without_storage).list_buckets()


@pytest.fixture
def gateway_without_storage():
    def refuse():
        raise StorageEndedError("weed <died>")

    gateway = Gateway(connect=refuse, keys=KEYS, chaos=Chaos())
    gateway.start()
    yield gateway
    gateway.close()


def test_a_request_meets_its_fault_and_a_strangers_uses_none_up(gateway, chaos, upstream):
    chaos.set([Throttle(on="s3:PUT")])
    stranger = KeyPair(access_key=KEYS.access_key, secret_key="guessed")
    for keys, refused in ((stranger, "403"), (KEYS, "SlowDown.*reduce your request rate")):
        with pytest.raises(ClientError, match=refused):
            client(gateway, keys).put_object(Bucket="b", Key="k", Body=bytes(3 << 20))
    client(gateway).put_object(Bucket="b", Key="k", Body=b"x")
    assert chaos.describe() == [("throttle on=s3:PUT", 1)]
    assert [len(body) for _, _, body in upstream[0]] == [3 << 20, 1]


@pytest.mark.parametrize(
    ("target", "body", "kept"),
    [
        ("/b/a/c", True, True),
        ("/b/a/", False, True),
        ("/b/", False, True),
        ("/b?list-type=2&prefix=a//b", False, True),
        ("/b/a//c", True, False),
        ("/b/a%2F%2Fc", True, False),
        ("/b//a", True, False),
        ("/b/a/", True, False),
        ("/b/a%5Cc", True, False),
        ("/b/.uploads/x", True, False),
    ],
)
def test_a_key_that_seaweedfs_would_change_is_refused(target, body, kept):
    problem = _problem_of_key(target, has_body=body)
    assert (problem is None) is kept
