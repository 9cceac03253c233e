"""Idle and slow clients are bounded: the server answers whatever they do."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import boto3
import pytest

from estimators.local.api import bounded_server
from estimators.local.api.bounded_server import BoundedHandler, BoundedServer, Connections

MOST = 8


class Server(BoundedServer, HTTPServer):
    """Counts what it was asked, and can be made to wait in the middle of a request."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reached = threading.Semaphore(0)
        self.gate = threading.Event()
        self.body_errors: list[BaseException] = []


class Handler(BoundedHandler, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.wait_if_asked()
        content = b"x" * (50 << 20 if self.path == "/large" else 2)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.path == "/given-up":
            self.server.reached.release()
            self.server.gate.wait(30)
            raise ConnectionResetError
        self.wfile.write(content)

    def wait_if_asked(self) -> None:
        if self.path == "/wait":
            self.server.reached.release()
            self.server.gate.wait(30)

    def do_PUT(self) -> None:
        try:
            self.rfile.read(int(self.headers["Content-Length"]))
        except BaseException as error:
            self.server.body_errors.append(error)
            self.server.reached.release()
            raise
        self.wait_if_asked()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(bounded_server, "MAX_CONNECTIONS", MOST)
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.gate.set()
        server.shutdown()
        thread.join()


def connect(server: Server) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=60)


def ask(server: Server, path: str = "/") -> bytes:
    with closing(connect(server)) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        return client.makefile("rb").read()


def test_idle_connections_give_way_the_oldest_first(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "GRACE_SECONDS", 0.05)
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(10 * MOST)]
        for _ in range(3):
            assert ask(server).startswith(b"HTTP/1.1 200")
        assert idle[0].recv(1) == b""
        idle[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert idle[-1].recv(12) == b"HTTP/1.1 200"


def test_a_connection_whose_request_is_on_its_way_does_not_give_way(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_server, "GRACE_SECONDS", 30.0)
    with ExitStack() as stack:
        *_, late = clients = [stack.enter_context(connect(server)) for _ in range(MOST + 1)]
        late.sendall(b"GET / HTTP/1.1\r\n\r\n")
        late.settimeout(0.2)
        with pytest.raises(TimeoutError):
            late.recv(1)
        clients[0].sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        late.settimeout(60)
        assert [client.recv(12) for client in (clients[0], late)] == [b"HTTP/1.1 200"] * 2


def test_a_request_that_nobody_has_read_yet_does_not_give_way() -> None:
    """The thread of its connection has had no core since it came."""
    connections = Connections(3)
    with ExitStack() as stack:
        servers, clients = zip(*(stack.enter_context(pair()) for _ in range(5)), strict=True)
        for server in servers[:3]:
            assert connections.admit(server)
        clients[0].sendall(b"GET / HTTP/1.1\r\n")
        time.sleep(bounded_server.GRACE_SECONDS)

        def close_what_ends(*ended: socket.socket) -> None:
            for each in ended:
                each.settimeout(30)
                assert not each.recv(1)
                connections.remove(each)

        threads = [threading.Thread(target=close_what_ends, args=[each]) for each in servers[1:3]]
        for thread in threads:
            thread.start()
        assert connections.admit(servers[3])
        assert connections.admit(servers[4])
        for thread in threads:
            thread.join()
        clients[0].settimeout(0)
        with pytest.raises(BlockingIOError):  # it is open
            clients[0].recv(1)


def test_a_request_that_is_being_read_does_not_give_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes have left the kernel, and its thread has had no core since: the connection is the oldest, and open."""
    parse = http.client.parse_headers

    def parse_late(*arguments: Any, **options: Any) -> Any:
        server.reached.release()
        server.gate.wait(30)
        return parse(*arguments, **options)

    with ExitStack() as stack:
        early, *idle = [stack.enter_context(connect(server)) for _ in range(MOST)]
        monkeypatch.setattr(http.client, "parse_headers", parse_late)
        early.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert server.reached.acquire(timeout=60)
        stack.enter_context(connect(server))
        assert idle[0].recv(1) == b"", "the oldest that waits makes room"
        server.gate.set()
        assert early.recv(12) == b"HTTP/1.1 200"


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_connection_that_is_kept_alive_gives_way_between_two_requests(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(2 * MOST):
            client = stack.enter_context(connect(server))
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"


def check_that_none_gives_way(server: Server, asking: list[socket.socket]) -> None:
    """One more client has to wait until those that ask have been answered."""
    with closing(connect(server)) as late:
        late.sendall(b"GET / HTTP/1.1\r\n\r\n")
        late.settimeout(0.1)
        with pytest.raises(TimeoutError):
            late.recv(1)
        server.gate.set()
        late.settimeout(60)
        assert [client.recv(12) for client in (*asking, late)] == [b"HTTP/1.1 200"] * (MOST + 1)


def test_a_request_in_progress_does_not_give_way(server: Server) -> None:
    with ExitStack() as stack:
        asking = [stack.enter_context(connect(server)) for _ in range(MOST)]
        for client in asking:
            client.sendall(b"GET /wait HTTP/1.1\r\n\r\n")
            assert server.reached.acquire(timeout=60)
        check_that_none_gives_way(server, asking)


def test_a_new_connection_is_refused_after_a_while_if_all_are_served(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_server, "BUSY_SECONDS", 1.0)
    client: Any = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(connect(server)).sendall(b"GET /wait HTTP/1.1\r\n\r\n")
            assert server.reached.acquire(timeout=60)
        began = time.monotonic()
        refused = [ask(server) for _ in range(100)]
        assert time.monotonic() - began < 30, "only the first of them waits"
        assert {answer.partition(b"\r\n")[0] for answer in refused} == {b"HTTP/1.1 503 Slow Down"}
        client.meta.events.register("needs-retry.s3", lambda response, **_: response and server.gate.set())
        answer = client.get_object(Bucket="bucket", Key="key")
    assert answer["Body"].read() == b"xx"
    assert answer["ResponseMetadata"]["RetryAttempts"] > 0


def test_a_reader_that_takes_nothing_gives_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "STALL_SECONDS", 0.05)
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(connect(server)).sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert ask(server).startswith(b"HTTP/1.1 200")


def test_a_body_that_stays_out_gives_way(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(connect(server)).sendall(b"PUT / HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc")
        assert ask(server).startswith(b"HTTP/1.1 200")
        assert server.reached.acquire(timeout=60)
    assert isinstance(server.body_errors[0], ConnectionError), "what was cut off is no body"


def test_a_body_that_has_come_does_not_give_way(server: Server) -> None:
    """The server works for it, though it has waited for a part of it."""
    with ExitStack() as stack:
        asking = [stack.enter_context(connect(server)) for _ in range(MOST)]
        for client in asking:
            client.sendall(b"PUT /wait HTTP/1.1\r\nContent-Length: 6\r\n\r\nabc")
        for client in asking:
            client.sendall(b"def")
            assert server.reached.acquire(timeout=60)
        check_that_none_gives_way(server, asking)


def test_a_reader_may_take_its_time_while_there_is_room(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "STALL_SECONDS", 0.01)
    with closing(connect(server)) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert client.recv(1) == b"H"
        threading.Event().wait(0.1)  # ten times as long as makes it a stalled one
        assert len(client.makefile("rb").read()) > 50 << 20


def test_headers_never_come_without_their_body(server: Server) -> None:
    """A server that is killed, or gives up, between the two has said nothing: botocore takes headers for an answer."""
    with closing(connect(server)) as client:
        client.sendall(b"GET /given-up HTTP/1.1\r\n\r\n")
        assert server.reached.acquire(timeout=60)
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        server.gate.set()
        client.settimeout(60)
        assert client.recv(1) == b""


def test_what_has_no_body_is_said(server: Server) -> None:
    with closing(connect(server)) as client:
        client.sendall(b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert client.recv(99) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"abc")
        assert client.recv(12) == b"HTTP/1.1 200"
    with closing(connect(server)) as client:
        client.sendall(b"HEAD / HTTP/1.1\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 501"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_a_head_that_does_not_come_ends_the_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(bounded_server, "HEAD_SECONDS", 0.1)
    with closing(connect(server)) as client, suppress(ConnectionError):  # the server may be faster than these bytes
        client.sendall(sent)
        assert client.recv(1) == b""


def test_a_head_that_comes_drop_by_drop_has_one_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "HEAD_SECONDS", 0.2)
    with closing(connect(server)) as client:
        client.settimeout(0.02)
        for _ in range(500):
            try:
                client.sendall(b"G")
                if client.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    pytest.fail("the connection is still open")


def test_endless_headers_are_refused(server: Server) -> None:
    with closing(connect(server)) as client:
        client.sendall(b"GET / HTTP/1.1\r\n" + b"A: " + b"a" * 40_000 + b"\r\nB: " + b"b" * 40_000)
        assert client.recv(12) == b"HTTP/1.1 431"


@pytest.mark.parametrize("leaves", [True, False])
def test_a_body_that_stays_out_is_no_body(server: Server, monkeypatch: pytest.MonkeyPatch, leaves: bool) -> None:
    monkeypatch.setattr(bounded_server, "SILENCE_SECONDS", 60 if leaves else 0.1)
    with closing(connect(server)) as client:
        client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc")
        if leaves:
            client.shutdown(socket.SHUT_WR)
        assert server.reached.acquire(timeout=60)
    assert isinstance(server.body_errors[0], ConnectionError if leaves else TimeoutError)


def test_a_body_that_comes_drop_by_drop_has_a_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "SILENCE_SECONDS", 0.2)
    with closing(connect(server)) as client:
        client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        while not server.reached.acquire(timeout=0.02):
            with suppress(ConnectionError):  # the server closes it at the deadline
                client.sendall(b"b")
    assert isinstance(server.body_errors[0], TimeoutError)
