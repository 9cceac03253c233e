"""Killed at any point of a save, a run loads a whole checkpoint: the one before, or the new one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smddp.checkpoint import list_checkpoints
from smddp.checkpoint.stores.filesystem import FileSystem

NewRun = Callable[..., Any]
FilesOf = Callable[[Path], Path]

# What changes a directory or makes it durable: between two of these a kill can leave something new behind.
LABELLED = ("make_directory", "create", "write", "sync", "sync_directory", "link", "replace", "unlink", "rmdir")


def in_a_child(action: Callable[[], object], *, kill_before: int | None) -> int:
    """Run an action in a fork that dies by SIGKILL just before the n-th labelled call; give how many calls it made.

    With None it lives, and tells how many there are.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        calls = 0

        def labelled(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                nonlocal calls
                if calls == kill_before:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls += 1
                return real(*arguments)

            return call

        try:
            for name in LABELLED:
                setattr(FileSystem, name, labelled(getattr(FileSystem, name)))
            action()
            os.write(writing, str(calls).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if kill_before is not None:
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        return kill_before
    assert told, "the save failed"
    return int(told)


def nothing(run: Any, files_of: FilesOf) -> None:
    """A plain save, which removes the oldest as well."""


def an_interrupted_save(run: Any, files_of: FilesOf) -> None:
    (run.save(30) / "manifest.json").unlink()


def a_damaged_one(run: Any, files_of: FilesOf) -> None:
    (files_of(run.save(30)) / "model.safetensors").write_bytes(b"damaged")


@pytest.mark.parametrize("leftover", [nothing, an_interrupted_save, a_damaged_one], ids=lambda each: each.__name__)
@pytest.mark.slow
def test_killed_at_every_point_of_a_save_it_recovers(
    leftover: Callable[[Any, FilesOf], None], new_run: NewRun, files_of: FilesOf
) -> None:
    def prepared(name: str) -> Any:
        run = new_run(name)
        for step in (10, 20):
            run.save(step)
        leftover(run, files_of)
        return resumed(name, at=20)

    def resumed(name: str, *, at: int) -> Any:
        run = new_run(name, last=2)
        assert run.load() == at
        return run

    counted = prepared("counted")
    points = in_a_child(lambda: counted.save(30), kill_before=None)
    assert points > 30
    loaded = []
    for point in range(points):
        run = prepared(f"killed at {point}")
        in_a_child(lambda run=run: run.save(30), kill_before=point)
        half_done = {info.status for info in list_checkpoints(run.directory)} - {"valid"}
        assert half_done <= ({"damaged", "incomplete"} if leftover is a_damaged_one else {"incomplete"})
        run = new_run(run.directory, last=2)  # the next life
        loaded.append(run.load())
        run.save(30)  # it comes to the same step
        run.save(40)
        assert run.load() == 40
        assert [(info.step, info.valid) for info in list_checkpoints(run.directory)] == [(30, True), (40, True)]
        for step in (30, 40):
            path = run.directory / f"step-{step:012}"
            assert sorted(path.iterdir()) == [files_of(path), path / "manifest.json"]
        assert not list(run.directory.rglob("*.smddp-partial"))
    assert set(loaded) == {20, 30}
    assert loaded == sorted(loaded)


@pytest.mark.slow
def test_killed_at_every_point_of_the_very_first_save_there_is_none_or_one(new_run: NewRun) -> None:
    points = in_a_child(lambda: new_run("counted/deep").save(5), kill_before=None)
    loaded = []
    for point in range(points):
        name = f"killed at {point}/deep"
        in_a_child(lambda name=name: new_run(name).save(5), kill_before=point)
        run = new_run(name)
        loaded.append(run.load() or 0)
        run.save(5)
        assert run.load() == 5
    assert set(loaded) == {0, 5}
    assert loaded == sorted(loaded)
