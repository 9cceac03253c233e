"""A log shows a path as short as it can, and never another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from smddp.path_text import shown_path


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
