"""How a platform on disk is reached is kept for its user, and read only if nobody else can have written it."""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from estimators.local.access import Access, KeptAccess, port_again
from estimators.local.api.signature import KeyPair
from estimators.local.errors import LocalPlatformError
from estimators.local.private_directory import LOCK

ACCESS = Access(
    endpoint_url="http://127.0.0.1:1", s3_endpoint_url="http://127.0.0.1:2", keys=KeyPair.random(), region="eu-west-1"
)


@pytest.fixture
def kept(tmp_path: Path) -> KeptAccess:
    kept = KeptAccess(tmp_path)
    kept.make()
    return kept


def test_what_was_kept_is_read_again(kept: KeptAccess, tmp_path: Path) -> None:
    assert KeptAccess(tmp_path / "elsewhere").read() is None
    assert kept.read() is None
    kept.write(ACCESS)
    kept.make()
    assert KeptAccess(tmp_path).read() == ACCESS
    assert kept.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in kept.directory.iterdir()} == {0o600}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"keys": 3}'])
def test_what_is_no_such_file_is_an_error(kept: KeptAccess, text: str) -> None:
    kept.write(ACCESS)
    (kept.directory / "access.json").write_text(text)
    why = "Expecting" if text in ("", "{") else "it holds no addresses and keys of a platform"
    with pytest.raises(LocalPlatformError, match=rf"access\.json can't be read: {why}.*Remove it"):
        kept.read()


@pytest.mark.parametrize("name", ["", "access.json"])
@pytest.mark.parametrize("by", [pytest.param("another user", marks=pytest.mark.root), "a group's rights", "a link"])
def test_what_somebody_else_can_have_written_is_not_believed(kept: KeptAccess, name: str, by: str) -> None:
    kept.write(ACCESS)
    path = kept.directory / name if name else kept.directory
    if by == "another user":
        os.chown(path, 65534, 65534)
    elif by == "a group's rights":
        path.chmod(0o770)
    else:
        moved = path.rename(kept.directory.parent / "moved")
        path.symlink_to(moved)
    with pytest.raises(LocalPlatformError, match="must be yours"):
        kept.read()


def test_a_port_that_is_taken_is_not_asked_for_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port_again(f"http://127.0.0.1:{port}") == 0
    assert port_again(f"http://127.0.0.1:{port}") == port


class _Stranger(BaseHTTPRequestHandler):
    answer: tuple[int, bytes]

    def do_POST(self) -> None:
        self.send_response(self.answer[0])
        self.send_header("Content-Length", str(len(self.answer[1])))
        self.end_headers()
        self.wfile.write(self.answer[1])

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize(
    "answer",
    [(200, b"{}"), (404, b'{"error": "no"}'), (200, b"[]"), (200, b"hello"), (200, b'{"TrainingJobSummaries": []}')],
)
def test_another_users_program_at_the_address_is_no_platform(
    kept: KeptAccess, answer: tuple[int, bytes], holds: bool
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Stranger,), {"answer": answer})) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        access = replace(ACCESS, endpoint_url=f"http://127.0.0.1:{server.server_port}")
        kept.write(access)
        storage = kept.directory.parent / "storage"
        storage.mkdir()
        with (storage / LOCK).open("w") as lock:
            if holds:
                fcntl.flock(lock, fcntl.LOCK_EX)
            expected = access if holds and b"Summaries" in answer[1] else None
            assert kept.read_running() == expected
        server.shutdown()
