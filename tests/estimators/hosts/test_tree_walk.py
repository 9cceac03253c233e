"""All below a directory, whatever a program made of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators.hosts import tree_walk

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
            name for name, _ in tree_walk.walk(descriptor, lambda path, why: told.update({path: str(why.strerror)}))
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
    monkeypatch.setattr(tree_walk, "_MOST_OPEN", 1)
    for name in ("a/b/c/file", "a/z/file", "z"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    descriptor, errors = os.open(top, os.O_PATH), []
    found = []
    for name, _ in tree_walk.walk(descriptor, lambda path, why: errors.append((path, why.strerror))):
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
