"""A missing path is told with the path that the user probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from smddp.job.near_names import near_directory, near_path, near_script


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trace.py", "src/train.py", "src/nets/resnet.py", "tests/test_train.py", ".git/train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("src/trian.py", "src/train.py"),
        ("src/train", "src/train.py"),
        ("scr/train.py", "src/train.py"),
        ("scr/trian.py", "src/train.py"),
        ("src/net/resnet.py", "src/nets/resnet.py"),
        ("train.py", "src/train.py"),  # of the same name, rather than trace.py
        ("src/src/train.py", "src/train.py"),
        ("evaluation.py", None),
        ("other/place/evaluation.py", None),
    ],
)
def test_a_script_is_near_by_its_name_and_its_directory(given: str, near: str | None) -> None:
    assert near_script(Path(given)) == (None if near is None else Path(near))


def test_an_absolute_path_is_near_by_an_absolute_path(tmp_path: Path) -> None:
    assert near_script(tmp_path / "scr" / "train.py") == tmp_path / "src" / "train.py"


def test_a_directory_is_near_by_a_directory_and_a_path_by_either() -> None:
    assert near_directory(Path("trac.py")) is None
    assert near_directory(Path("scr/net")) == Path("src/nets")
    assert near_path(Path("trac.py")) == Path("trace.py")
    assert near_path(Path("test")) == Path("tests")
