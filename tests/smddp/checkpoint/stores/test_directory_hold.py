"""A directory that a run has: nobody else saves there as long as its process lives, and not a moment longer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smddp.checkpoint.stores import owner_record as owners
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.directory_hold import DirectoryHold
from smddp.checkpoint.stores.owner_record import OWNER_NAME, LocationTakenError, Owner
from smddp.checkpoint.stores.store import Hold

RUN, OTHER = "0123456789ab", "ba9876543210"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "PATIENCE_SECONDS", 0.3)


def take(root: Path, run: str = RUN) -> Hold:
    hold = DirectoryStore(root).hold(Owner.here(run), make=True)
    assert hold is not None
    return hold


@contextlib.contextmanager
def child(action: Callable[[], object]) -> Iterator[int]:
    """Do something in a fork, which lives on until it is killed; it has done it when this begins."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            kept = action()
            os.write(writing, b"done")
            time.sleep(60)
            del kept
        finally:
            os._exit(1)
    try:
        os.close(writing)
        assert os.read(reading, 4) == b"done"
        yield process
    finally:
        os.close(reading)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def is_refused(root: Path) -> bool:
    """Whether another process cannot have it."""
    process = os.fork()
    if process == 0:
        try:
            take(root, OTHER)
            os._exit(0)
        except LocationTakenError:
            os._exit(7)
        finally:
            os._exit(1)
    return {0: False, 7: True}[os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])]


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with child(lambda: take(tmp_path)) as process, pytest.raises(LocationTakenError) as error:
        take(tmp_path, OTHER)
    assert f"the run {RUN} (process {process} on {socket.gethostname()}, since 20" in str(error.value)
    assert f"saves its checkpoints in {tmp_path}: wait until it ends, or give this run another run" in str(error.value)
    assert caplog.messages == [f"another run saves its checkpoints in {tmp_path}; waiting up to 0 s for it to end"]


def test_after_a_kill_the_next_has_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "PATIENCE_SECONDS", 20.0)
    with child(lambda: take(tmp_path)):
        pass
    started = time.monotonic()
    take(tmp_path).release()
    assert time.monotonic() - started < owners.PATIENCE_SECONDS / 2


def test_the_workers_of_one_that_was_killed_do_not_keep_it(tmp_path: Path) -> None:
    def take_and_fork() -> Hold:
        kept = take(tmp_path / "run")
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
            os._exit(0)
        (tmp_path / "worker").write_text(str(worker))
        return kept

    with child(take_and_fork):
        assert is_refused(tmp_path / "run")
    try:
        take(tmp_path / "run").release()
    finally:
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)


def test_one_that_is_about_to_end_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "PATIENCE_SECONDS", 20.0)
    with child(lambda: take(tmp_path)) as process:
        os.kill(process, signal.SIGKILL)
        take(tmp_path).release()


def test_released_it_leaves_nothing(tmp_path: Path) -> None:
    take(tmp_path / "new").release()
    assert list((tmp_path / "new").iterdir()) == []


def test_one_process_has_it_once_by_however_many_holds(tmp_path: Path) -> None:
    one, other = take(tmp_path), take(tmp_path, OTHER)
    one.release()
    other.check()
    assert is_refused(tmp_path)
    other.release()
    assert not is_refused(tmp_path)


def test_a_hold_that_nothing_refers_to_keeps_nobody_out(tmp_path: Path) -> None:
    kept = take(tmp_path)
    assert is_refused(tmp_path)
    del kept
    assert not is_refused(tmp_path)


def test_a_fork_does_not_give_up_what_its_parent_has(tmp_path: Path) -> None:
    kept = take(tmp_path)
    process = os.fork()
    if process == 0:
        kept.release()
        del kept
        os._exit(0)
    os.waitpid(process, 0)
    assert is_refused(tmp_path)
    kept.release()


def test_a_copy_of_the_directory_is_free(tmp_path: Path) -> None:
    with child(lambda: take(tmp_path / "run")):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        take(tmp_path / "copy").release()


def test_a_lock_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    kept = take(tmp_path)
    (tmp_path / OWNER_NAME).unlink()
    kept.check()
    assert is_refused(tmp_path)
    kept.release()


def test_who_lost_it_is_told(tmp_path: Path) -> None:
    kept = take(tmp_path)
    (tmp_path / OWNER_NAME).unlink()
    with child(lambda: take(tmp_path, OTHER)), pytest.raises(LocationTakenError, match=OTHER):
        kept.check()


def test_what_is_not_there_is_not_made_unless_wanted(tmp_path: Path) -> None:
    assert DirectoryStore(tmp_path / "none").hold(Owner.here(RUN), make=False) is None
    assert not (tmp_path / "none").exists()


def test_without_locks_nobody_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import fcntl

    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with child(lambda: take(tmp_path)):
        hold = take(tmp_path)
        assert isinstance(hold, DirectoryHold)
        hold.release()


def test_a_record_that_says_nothing_is_read_as_such() -> None:
    assert Owner.from_json(b"") is None
    assert Owner.from_json(b"{}") is None
    assert Owner.from_json(b'"text"') is None
    here = Owner.here(RUN)
    assert Owner.from_json(here.to_json()) == here
    assert Owner.from_json(here.to_json().replace(b'"pid": ', b'"pid": "a", "x": ')) is None


def test_a_copy_of_the_directory_does_not_give_it_up(tmp_path: Path) -> None:
    hold = take(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # opens and closes the file, and with it goes a POSIX lock
    hold.check()
    assert is_refused(tmp_path / "run")
