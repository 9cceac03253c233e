import fcntl
import grp
import os
import stat

import pytest

from estimators.local import private_directory
from estimators.local.access import KeptAccess
from estimators.local.errors import LocalPlatformError
from estimators.local.private_directory import LOCK, is_locked, make_private, require_unshared
from estimators.source_code.tree import Tree


def test_makes_a_directory_that_is_closed_to_others(tmp_path):
    make_private(tmp_path / "made" / "here")
    assert stat.S_IMODE((tmp_path / "made" / "here").stat().st_mode) == 0o700


def test_what_a_platform_keeps_is_no_code_of_a_job(tmp_path):
    (tmp_path / "train.py").touch()
    for directory in (tmp_path, tmp_path / "state"):
        make_private(directory / "records")
        KeptAccess(directory).make()
        (directory / "access" / "aws-credentials").touch()
        (directory / "records" / "jobs.sqlite").touch()
    (tmp_path / ".smddp").mkdir()
    (tmp_path / ".smddp" / "earlier").touch()
    tree = Tree.of(tmp_path)
    assert tree.files == ["train.py"]
    assert {"access/", "records/", "state/access/", "state/records/", ".smddp/"} == set(tree.left_out)


def test_closes_one_that_was_open_and_says_so(tmp_path, caplog):
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert f"closed {tmp_path} to other users: its mode was 755" in caplog.text


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
@pytest.mark.parametrize("shared", ["", "above"])
def test_a_directory_in_which_others_can_rename_is_refused(tmp_path, monkeypatch, mode, shared):
    monkeypatch.setattr(private_directory, "_is_own_group", lambda _: False)
    inner = tmp_path / "above" / "here"
    inner.mkdir(parents=True, mode=0o700)
    place = tmp_path / shared if shared else inner
    place.chmod(mode)
    with pytest.raises(LocalPlatformError, match=rf"{place} can be written to by other users \(mode {mode:o}\)"):
        require_unshared(inner)
    place.chmod(mode | stat.S_ISVTX)
    require_unshared(inner)


def test_a_group_of_the_users_own_is_nobody_else():
    own = os.getegid() if os.getegid() == 0 else None
    assert own is None or private_directory._is_own_group(own)
    assert not private_directory._is_own_group(next(entry.gr_gid for entry in grp.getgrall() if entry.gr_gid > 0))


def test_a_directory_is_locked_as_long_as_somebody_holds_it(tmp_path):
    assert not is_locked(tmp_path)
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
