"""Who may look at the console, and who not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from estimators.console.jobs import JobSource
from estimators.console.server import Console, LinkAuth
from estimators.errors import EstimatorError
from tests.estimators.console.conftest import Client, entered


@pytest.fixture(scope="module")
def source() -> Iterator[JobSource]:
    """An account without a job."""
    with mock_aws():
        session = boto3.Session(region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
        yield JobSource(name="AWS", session=session)


def test_a_link_opens_once_and_the_next_one_is_told(source: JobSource) -> None:
    told: list[str] = []
    with Console(source, entered=told.append) as console:
        first = console.link
        client = entered(first)
        assert client.ask("/").status == 200
        token = first.partition("/open")[2]
        assert "This link was used, or is not this console's" in client.ask(f"/open{token}").data.decode()
        assert told == [console.link] != [first]
        assert entered(told[0]).ask("/").status == 200


def test_no_packet_of_an_answer_waits_for_the_clients_acknowledgement(console: Console) -> None:
    """The kernel acknowledges the first packets of a connection at once, all others after 40 ms."""
    client, seconds = entered(console.link), []
    for _ in range(40):
        began = time.perf_counter()
        client.text("/static/console.css")
        seconds.append(time.perf_counter() - began)
    assert min(seconds[20:]) < 0.03


def test_the_cookie_is_for_this_console_alone(console: Console) -> None:
    client = entered(console.link)
    link = console.link.partition("/open")[2]
    cookie = client.ask(f"/open{link}").headers["Set-Cookie"]
    assert cookie.split("; ")[1:] == ["HttpOnly", f"Path={client.root}/", "SameSite=strict"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Cookie": ""},
        {"Cookie": "smddp-console=wrong"},
        {"Cookie": "smddp-console=\u00e9"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_others_are_refused(client: Client, headers: dict[str, str]) -> None:
    for path in ("/", "/jobs/long", "/static/console.js", "/jobs/long/lines"):
        answer = client.ask(path, **headers)
        assert answer.status == 403 and b"long" not in answer.data
        told = {"Host": "answers to 127.0.0.1 only", "Cookie": "opens by the link that it shows"}
        assert told.get(next(iter(headers)), "of other pages are refused") in answer.data.decode()


def test_nobody_without_the_path_learns_anything(client: Client) -> None:
    client.root = "/guess"
    assert {client.ask(path).status for path in ("/", "/open?token=x", "/static/console.css")} == {403}


def test_only_pages_of_the_console_can_change_anything(client: Client) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", ""):
        assert b"own pages" in client.ask("/jobs/long/stop", "POST", Origin=origin).data
    assert b"own pages" in client.ask("/jobs/long/stop", "DELETE").data


def test_each_answer_lets_run_no_script_but_the_consoles(client: Client) -> None:
    for path in ("/", "/none", "/static/console.js", "/jobs/long/log.txt"):
        headers = client.ask(path).headers
        assert "script-src 'self';" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
        assert "Server" not in headers


def test_a_port_that_is_taken_is_named(console: Console, source: JobSource) -> None:
    port = int(console.link.split(":")[2].split("/")[0])
    with pytest.raises(EstimatorError, match=rf"can't listen on port {port} .*Give another --port"):
        Console(source, port=port)


def test_the_console_is_on_this_machine_alone(console: Console) -> None:
    assert isinstance(console._link_auth, LinkAuth)
    assert console._socket.getsockname()[0] == "127.0.0.1"
