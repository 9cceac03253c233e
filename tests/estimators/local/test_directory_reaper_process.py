import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from estimators.local import directory_reaper
from estimators.local.directory_reaper import remove_listed
from estimators.local.directory_reaper_process import DirectoryReaperProcess
from estimators.local.errors import LocalPlatformError


@pytest.fixture(autouse=True)
def _place_of_lifelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_directory_goes_with_the_last_who_has_the_lifeline(tmp_path):
    directory, other = tmp_path / "directory", tmp_path / "socket"
    reaper = DirectoryReaperProcess(directory)
    directory.mkdir()
    (directory / "file").touch()
    other.touch()
    reaper.lifeline.also_remove(other)
    reaper.lifeline.also_remove(tmp_path / "never made")
    keeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[reaper.lifeline.fileno()])
    reaper.lifeline.close()
    assert not reaper.wait(0.2)
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {"directory", "socket"}
    keeper.kill()
    keeper.communicate()
    assert reaper.wait(60)
    assert list(tmp_path.iterdir()) == []


def test_programs_that_are_not_handed_the_lifeline_do_not_have_it(tmp_path):
    reaper = DirectoryReaperProcess(tmp_path / "directory")
    descriptor = reaper.lifeline.fileno()
    program = f"import os; os.fstat({descriptor})"
    assert subprocess.run([sys.executable, "-c", program], check=False, close_fds=False, capture_output=True).returncode
    assert not os.get_inheritable(descriptor)
    reaper.lifeline.close()
    assert reaper.wait(60)


def test_a_reaper_that_was_killed_is_replaced_at_the_end(tmp_path):
    directory, socket = tmp_path / "directory", tmp_path / "socket"
    reaper = DirectoryReaperProcess(directory)
    directory.mkdir()
    socket.touch()
    os.kill(reaper.pid, signal.SIGKILL)
    assert not reaper.wait(10)
    reaper.lifeline.also_remove(socket)
    reaper.lifeline.close()
    assert reaper.wait(60)
    assert list(tmp_path.iterdir()) == []


def test_what_a_reaper_left_that_was_killed_with_all_others_goes_with_the_next_one(tmp_path):
    directory, running, others = tmp_path / "directory", tmp_path / "running", tmp_path / "an\nothers"
    killed = [DirectoryReaperProcess(directory), DirectoryReaperProcess(running)]
    for path in (directory, running, others):
        path.mkdir()
    killed[0].lifeline.also_remove(others)
    os.write(killed[0].lifeline.fileno(), os.fsencode(tmp_path))  # cut off by SIGKILL: it names nothing
    for reaper in killed:
        os.kill(reaper.pid, signal.SIGKILL)
        os.waitpid(reaper.pid, 0)
    killed[0].lifeline.close()
    following = DirectoryReaperProcess(tmp_path / "following")
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {"running"}
    killed[1].lifeline.close()
    following.lifeline.close()
    assert following.wait(60)
    DirectoryReaperProcess(tmp_path / "last").lifeline.close()
    assert not running.exists()


@pytest.mark.parametrize("mode", [0o600, 0o622])
@pytest.mark.parametrize("make", [os.rename, os.link, os.symlink])
def test_a_file_that_another_user_could_have_put_there_lists_nothing(tmp_path, make, mode):
    kept, written, lifeline = tmp_path / "kept", tmp_path / "written", tmp_path / "lifeline"
    kept.touch()
    written.write_bytes(os.fsencode(lifeline) + b"\0" + os.fsencode(kept) + b"\0")
    written.chmod(mode)
    make(written, lifeline)
    with suppress(OSError):
        remove_listed(lifeline, wait=False)
    assert kept.exists() != ((make, mode) == (os.rename, 0o600))  # which is one of ours


def test_a_lifeline_counts_only_at_its_own_path(tmp_path):
    kept, lifeline = tmp_path / "kept", tmp_path / "lifeline"
    kept.touch()
    lifeline.write_bytes(b"/elsewhere/lifeline\0" + os.fsencode(kept) + b"\0")
    lifeline.chmod(0o600)
    remove_listed(lifeline, wait=False)
    assert kept.exists() and lifeline.exists()


def test_a_lifeline_stays_while_something_can_not_be_removed(tmp_path, monkeypatch):
    left, lifeline = tmp_path / "left", tmp_path / "lifeline"
    left.touch()
    lifeline.write_bytes(os.fsencode(lifeline) + b"\0" + os.fsencode(left) + b"\0")
    lifeline.chmod(0o600)
    with monkeypatch.context() as patched:
        patched.setattr(directory_reaper, "remove_tree", fail)
        remove_listed(lifeline, wait=False)
    assert lifeline.exists()
    remove_listed(lifeline, wait=False)
    assert not left.exists() and not lifeline.exists()


def test_where_no_file_can_be_locked_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(LocalPlatformError, match="set TMPDIR to a directory on a local disk"):
        DirectoryReaperProcess(tmp_path / "directory")
    assert list(tmp_path.iterdir()) == []


def test_where_no_file_can_be_made_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(LocalPlatformError, match=r"No such file or directory\): set TMPDIR to a directory"):
        DirectoryReaperProcess(tmp_path / "directory")


def fail(*arguments: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


def test_a_pipe_in_the_place_of_a_lifeline_holds_nobody(tmp_path):
    os.mkfifo(tmp_path / "lifeline", 0o600)
    remove_listed(tmp_path / "lifeline", wait=False)


def test_a_reaper_that_can_not_be_started_leaves_no_lifeline(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError):
        DirectoryReaperProcess(tmp_path / "directory")
    assert list(tmp_path.iterdir()) == []
