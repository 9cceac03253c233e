"""A log shows a path as short as it can, and never another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from smddp.path_text import shown_path, with_shown_paths


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/me/project/runs/a", "runs/a"),
        ("/home/me/project-2/runs", "~/project-2/runs"),
        ("/home/mean/runs", "/home/mean/runs"),
        ("/opt/ml/model", "/opt/ml/model"),
        ("s3://bucket//a", "s3://bucket//a"),
    ],
)
def test_a_path_is_shown_from_the_nearest_directory(path: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: Path("/home/me/project"))
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert shown_path(path) == shown


def test_a_removed_working_directory_and_the_root_shorten_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.chdir("/")
    assert shown_path("/opt/ml") == "/opt/ml"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert shown_path("/opt/ml") == "/opt/ml"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no directory /home/me/project/runs/a.", "no directory runs/a."),
        ("'/home/me/project/a.npz' and /home/me/b: absent", "'a.npz' and ~/b: absent"),
        ("(looked in /home/me/project).", "(looked in /home/me/project)."),
        ("SM_CHANNEL_A=/home/me/a, /opt/ml/model", "SM_CHANNEL_A=~/a, /opt/ml/model"),
        ("cat '/home/me/a b'", "cat '/home/me/a b'"),
        ("s3://home/me/project/a, file:///home/me/a, x/home/me/a, 1/2", None),
    ],
)
def test_the_paths_of_a_message_are_shown_in_the_same_way(
    text: str, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: Path("/home/me/project"))
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert with_shown_paths(text) == (text if shown is None else shown)
