"""A host's /opt/ml, whatever its program has put into it."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from estimators.hosts import opt_ml_tree
from estimators.hosts.opt_ml_tree import HostTree, LeadsOutError, legible


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def tree(tmp_path: Path, said: list[str]) -> HostTree:
    """With a directory `checkpoints`, beside a directory that is not of it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (tmp_path / "algo-1" / "checkpoints").mkdir(parents=True)
    return HostTree(tmp_path / "algo-1", say=said.append)


def link(tree: HostTree, name: str, target: str | Path) -> PurePath:
    (tree.root / name).symlink_to(target)
    return PurePath(name)


def read(tree: HostTree, path: PurePath) -> str:
    with tree.reading(path) as file:
        return file.read_text()


@pytest.mark.parametrize(
    "target",
    [
        "a/file",
        "./a/../a/file",
        "../checkpoints/a/file",
        "/opt/ml/checkpoints/a/file",
        "/opt/ml/model/../checkpoints/a/file",
        "../around/a/file",
        "again",
    ],
)
def test_a_link_goes_where_the_program_saw_it_go(tree: HostTree, said: list[str], target: str) -> None:
    folder = tree.root / "checkpoints"
    (folder / "a").mkdir()
    (folder / "a" / "file").write_text("content")
    (tree.root / "model").mkdir()
    link(tree, "around", "/opt/ml/checkpoints")
    link(tree, "checkpoints/again", "/opt/ml/around/a/file")
    path = link(tree, "checkpoints/link", target)
    assert read(tree, path) == "content"
    status = tree.status(path)
    assert status is not None and status.st_ino == (folder / "a" / "file").stat().st_ino
    assert tree.read_link(path) == target
    assert not said


def test_without_namespaces_a_link_may_begin_with_the_trees_own_path(tree: HostTree, said: list[str]) -> None:
    own = HostTree(tree.root, seen_as=tree.root, say=said.append)
    (tree.root / "file").write_text("content")
    assert read(own, link(own, "link", tree.root / "file")) == "content"
    assert own.status(link(own, "elsewhere", "/opt/ml/file")) is None


@pytest.mark.parametrize("target", ["{outside}/secret", "../../outside/secret", "/opt/ml/../outside/secret"])
def test_what_leads_out_is_not_there_and_it_is_said_once(tree: HostTree, said: list[str], target: str) -> None:
    path = link(tree, "checkpoints/stolen", target.format(outside=tree.root.parent / "outside"))
    for _ in range(2):
        assert tree.status(path) is None
    with pytest.raises(LeadsOutError, match="leads out of /opt/ml"), tree.reading(path):
        pass
    assert said == ["[platform] /opt/ml/checkpoints/stolen is passed over: it leads out of /opt/ml"]


def test_a_directory_that_was_replaced_by_a_link_out_is_empty(tree: HostTree, said: list[str]) -> None:
    link(tree, "model", tree.root.parent / "outside")
    assert list(tree.entries(PurePath("model"))) == []
    with pytest.raises(LeadsOutError), tree.reading(PurePath("model", "secret")):
        pass
    with pytest.raises(LeadsOutError):
        tree.make_pipe(PurePath("model", "pipe"))
    with pytest.raises(LeadsOutError):
        tree.remove(PurePath("model", "secret"))
    assert (tree.root.parent / "outside" / "secret").exists()
    assert said == ["[platform] /opt/ml/model is passed over: it leads out of /opt/ml"]


def test_entries_are_all_but_directories_and_links_are_not_followed(tree: HostTree) -> None:
    folder = tree.root / "checkpoints"
    (folder / "b").mkdir()
    (folder / "b" / "file").touch()
    (folder / "z").touch()
    link(tree, "checkpoints/a", "b")
    found = {name: stat.S_ISLNK(status.st_mode) for name, status in tree.entries(PurePath("checkpoints"))}
    assert found == {"a": True, "z": False, "b/file": False}
    assert list(tree.entries(PurePath("nowhere"))) == []


@pytest.mark.parametrize("target", ["link", "nowhere", "file/below"])
def test_links_that_lead_nowhere_are_nothing(tree: HostTree, said: list[str], target: str) -> None:
    (tree.root / "file").touch()
    path = link(tree, "link", target)
    assert tree.status(path) is None
    with pytest.raises(OSError), tree.reading(path):
        pass
    assert not said


def test_what_is_no_file_is_not_read(tree: HostTree) -> None:
    os.mkfifo(tree.root / "pipe")  # to open it would wait for ever
    for name in ("pipe", "checkpoints"):
        with pytest.raises(FileNotFoundError), tree.reading(PurePath(name)):
            pass


def test_a_pipe_is_written_and_nothing_in_its_place(tree: HostTree) -> None:
    path = PurePath("checkpoints", "pipe")
    tree.make_pipe(path)
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
        tree.open_pipe(path)
    reader = os.open(tree.root / path, os.O_RDONLY | os.O_NONBLOCK)
    writer = tree.open_pipe(path)
    os.write(writer, b"data")
    assert os.read(reader, 10) == b"data"
    os.close(writer)
    (tree.root / path).rename(tree.root / "pipe")
    link(tree, str(path), "/opt/ml/pipe")
    with pytest.raises(OSError, match="something else in the pipe's place"):
        tree.open_pipe(path)
    os.close(reader)
    tree.remove(path)
    tree.remove(path)
    assert not (tree.root / path).is_symlink()


def test_a_file_in_a_directorys_place_is_said(tree: HostTree, said: list[str]) -> None:
    (tree.root / "model").write_text("the model itself")
    for _ in range(2):
        assert list(tree.entries(PurePath("model"))) == []
    assert said == ["[platform] /opt/ml/model is no directory"]
    assert list(tree.entries(PurePath("none"))) == []
    assert len(said) == 1


def test_a_name_is_legible_on_a_line() -> None:
    assert legible("plain é") == "plain é"
    assert legible("new\nline") == r"'new\nline'"
    assert legible(os.fsdecode(b"\xff")) == r"'\udcff'"
    assert len(legible("d/" * 2000)) < 350


def test_a_program_that_makes_odd_paths_without_end_fills_no_log(tree: HostTree, said: list[str]) -> None:
    for number in range(3000):
        tree.tell(PurePath(str(number)), "is odd")
    assert said[999] == "[platform] /opt/ml/999 is odd"
    assert said[1000:] == ["[platform] 1,000 paths were reported; further ones are not"]


def test_no_descriptor_stays_open(tree: HostTree) -> None:
    (tree.root / "checkpoints" / "file").touch()
    paths = [PurePath("checkpoints", "file"), link(tree, "out", "/etc/passwd"), link(tree, "loop", "loop")]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in paths:
        tree.status(path)
    list(tree.entries(PurePath("checkpoints")))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_has_no_content_is_left_out_and_said_once(tree: HostTree, said: list[str]) -> None:
    folder = tree.root / "checkpoints"
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket"))
    (folder / "file").touch()
    for _ in range(2):
        assert [name for name, _ in tree.entries(PurePath("checkpoints"))] == ["file"]
    assert said == [
        "[platform] /opt/ml/checkpoints/pipe is left out: it is a named pipe",
        "[platform] /opt/ml/checkpoints/socket is left out: it is a socket",
    ]


def test_what_can_not_be_read_is_told_to_who_asks(tree: HostTree) -> None:
    (tree.root / "file").touch()
    link(tree, "model", "file")
    link(tree, "out", "/elsewhere")
    unread: list[OSError] = []
    for name in ("model", "out", "none"):
        assert list(tree.entries(PurePath(name), unread=unread.append)) == []
    assert [type(error) for error in unread] == [NotADirectoryError, LeadsOutError]
    assert "/opt/ml/model" in str(unread[0])


def test_an_error_names_the_path_that_the_program_knows(tree: HostTree) -> None:
    with pytest.raises(IsADirectoryError, match=r"'/opt/ml/checkpoints'"):
        tree.remove(PurePath("checkpoints"))
    (tree.root / "file").write_text("a")
    with pytest.raises(NotADirectoryError, match=r"'/opt/ml/file/in-it'"), tree.reading(PurePath("file")) as file:
        (file / "in-it").read_text()


DEPTH = 1500
"""Deeper than Python's stack, and than a path may be long."""


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    top = tmp_path / "top"
    top.mkdir()
    yield top
    subprocess.run(["rm", "-rf", top], check=True)  # which pytest could not


def walk(top: Path, errors: dict[str, str] | None = None) -> list[str]:
    descriptor = os.open(top, os.O_PATH)
    told: dict[str, str] = {} if errors is None else errors
    try:
        return [
            name for name, _ in opt_ml_tree.walk(descriptor, lambda path, why: told.update({path: str(why.strerror)}))
        ]
    finally:
        os.close(descriptor)


def dig(top: Path, *, side: bool) -> None:
    here = os.open(top, os.O_DIRECTORY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=here)
        if side:
            os.mkdir("e", dir_fd=here)
        deeper = os.open("d", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("leaf", os.O_CREAT, dir_fd=here))
    os.close(here)


def test_files_come_in_order_and_before_directories(top: Path) -> None:
    for name in ("b/z", "b/a/x", "c", "a/y"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    assert walk(top) == ["c", "a/y", "b/z", "b/a/x"]


@pytest.mark.parametrize("side", [False, True])
def test_a_tree_of_any_depth_takes_steps_and_descriptors_in_proportion(
    top: Path, monkeypatch: pytest.MonkeyPatch, *, side: bool
) -> None:
    dig(top, side=side)
    opened, most, original = 0, 0, os.open

    def count(*arguments: Any, **options: Any) -> int:
        nonlocal opened, most
        descriptor = original(*arguments, **options)
        opened, most = opened + 1, max(most, descriptor)
        return descriptor

    before = original(top, os.O_PATH)
    monkeypatch.setattr(os, "open", count)
    assert walk(top) == ["d/" * DEPTH + "leaf"]
    os.close(before)
    assert opened < 20 * DEPTH
    assert most < before + 100


def test_a_directory_that_is_moved_away_meanwhile_is_passed_over(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opt_ml_tree, "_MOST_OPEN", 1)
    for name in ("a/b/c/file", "a/z/file", "z"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    descriptor, errors = os.open(top, os.O_PATH), []
    found = []
    for name, _ in opt_ml_tree.walk(descriptor, lambda path, why: errors.append((path, why.strerror))):
        found.append(name)
        if name == "a/b/c/file":
            (top / "a").rename(top / "elsewhere")
            (top / "a").symlink_to("/etc")
    os.close(descriptor)
    assert found == ["z", "a/b/c/file"]
    assert errors == [("a/z", "Not a directory")]
    shutil.rmtree(top)


def test_what_is_no_directory_has_nothing_below(top: Path) -> None:
    (top / "file").touch()
    errors: dict[str, str] = {}
    assert walk(top / "file", errors) == []
    assert errors == {".": "Not a directory"}
