import errno
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from estimators.local import directory_reaper
from estimators.local.directory_reaper import remove_tree
from tests.estimators.local.strangers import STRANGER


def test_a_tree_is_removed_and_what_its_links_lead_to_is_not(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "file").touch()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "tree" / "a" / "link").symlink_to("/nowhere")
    remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.rglob("*")] == ["outside", "file"]


def test_a_tree_is_removed_that_is_deeper_than_the_stack_and_longer_than_a_path(tmp_path):
    here = os.open(tmp_path, os.O_PATH)
    for _ in range(1500):
        os.mkdir("directory", dir_fd=here)
        there = os.open("directory", os.O_PATH, dir_fd=here)
        os.close(here)
        here = there
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)
    remove_tree(tmp_path / "directory")
    assert list(tmp_path.iterdir()) == []


def test_one_file_is_removed_too_and_what_is_not_there_already(tmp_path):
    (tmp_path / "file").touch()
    remove_tree(tmp_path / "file")
    remove_tree(tmp_path / "file")
    remove_tree(tmp_path / "no" / "parent")
    assert list(tmp_path.iterdir()) == []


CLOSED_TREE = """if True:
    import os, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[3])
    from directory_reaper import remove_tree
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
    closed = Path(sys.argv[1], "tree", "a", "b")
    closed.mkdir(parents=True)
    (closed / "file").touch()
    closed.chmod(0)
    closed.parent.chmod(0o500)
    remove_tree(Path(sys.argv[1], "tree"))
"""


@pytest.mark.root  # who is stopped by no mode, and so has to become another user
def test_a_tree_with_directories_that_are_closed_to_their_owner_is_removed(open_directory):
    mine = open_directory / "mine"
    mine.mkdir(mode=0o300)
    os.chown(mine, STRANGER, STRANGER)
    place = str(Path(directory_reaper.__file__).parent)
    program = [sys.executable, "-S", "-c", CLOSED_TREE, str(mine), str(STRANGER), place]
    subprocess.run(program, check=True, cwd="/")
    assert list(mine.iterdir()) == []
    assert stat.S_IMODE(mine.stat().st_mode) == 0o300


def test_what_can_not_be_removed_is_an_error_and_all_else_is_gone(tmp_path, monkeypatch):
    (tmp_path / "tree" / "kept").mkdir(parents=True)
    (tmp_path / "tree" / "kept" / "file").touch()
    (tmp_path / "tree" / "gone").mkdir()
    unlink = os.unlink

    def refuse(name, **options):
        if name == "file":
            raise PermissionError(name)
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError, match="file"):
        remove_tree(tmp_path / "tree")
    assert sorted(path.name for path in (tmp_path / "tree").rglob("*")) == ["file", "kept"]


def test_two_may_remove_one_tree_at_once(tmp_path):
    for number in range(300):
        (tmp_path / "tree" / f"{number}" / "a").mkdir(parents=True)
    with ThreadPoolExecutor(2) as threads:
        for _ in threads.map(remove_tree, [tmp_path / "tree"] * 2):  # raises what either did
            pass
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_opened_is_an_error_that_names_it(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(errno.EPERM, "not permitted", str(path))

    (tmp_path / "tree" / "closed").mkdir(parents=True, mode=0o300)
    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(PermissionError, match="not permitted: 'closed'"):
        remove_tree(tmp_path / "tree")
