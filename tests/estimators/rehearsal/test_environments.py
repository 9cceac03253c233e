"""Environments that stand for images: made once, whole or not at all, few, and the user's alone."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from estimators.errors import EstimatorError
from estimators.rehearsal import environments
from estimators.rehearsal.environments import MADE, environment
from estimators.rehearsal.image_content import ImageContent
from smddp.process.heartbeat import Heartbeat
from tests.estimators.rehearsal.conftest import HERE

CONTENT = ImageContent(torch="2.8", python=HERE, requirements=("torch==2.8.*",))


def content(name: str, *more: str) -> ImageContent:
    return ImageContent(torch=name, python=HERE, requirements=(f"torch=={name}.*", *more))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requirements of each installation, none of which installs anything."""
    made: list[str] = []

    def install(directory: Path, python: str, requirements: Sequence[str], *, keep: int) -> None:
        (directory / "lib" / f"python{HERE}" / "site-packages").mkdir(parents=True)
        made.extend(requirements)

    monkeypatch.setattr(environments, "install", install)
    return made


def test_holds_the_images_torch_and_smddp_and_no_package_of_this_python(
    index: None, by: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import importlib.util as u, torch, smddp; print(torch.__version__, smddp.__file__, u.find_spec('hypothesis'))"
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with environment(CONTENT) as found:
        said = subprocess.run([found.python, "-c", program], capture_output=True, text=True, check=True, cwd="/").stdout
    (place,) = (path for path in cache.iterdir() if path.is_dir())
    packages = place / "lib" / f"python{HERE}" / "site-packages"
    assert said.split() == ["2.8.0", str(packages / "smddp" / "__init__.py"), "None"]
    assert found.version == HERE


def test_is_made_once_and_anew_for_other_content(made: list[str]) -> None:
    for each in (content("2.8"), content("2.8", "pandas"), content("2.8")):
        with environment(each):
            pass
    assert made == ["torch==2.8.*", "torch==2.8.*", "pandas"]


def test_what_a_killed_making_left_does_not_count(
    made: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with environment(CONTENT) as found:
        place = Path(found.python).parents[1]
    (place / MADE).unlink()  # it comes last
    (place / "half").touch()
    with environment(CONTENT):
        assert not (place / "half").exists()
    assert made == ["torch==2.8.*"] * 2

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(environments, "packages_of", interrupted)
    with pytest.raises(KeyboardInterrupt), environment(content("2.7")):
        pass
    assert [path for path in cache.iterdir() if path.is_dir()] == [place]


def test_the_last_used_stay_and_those_in_use(made: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "MOST", 2)

    def kept() -> list[str]:
        return sorted(path.name.split("-")[1] for path in cache.iterdir() if path.is_dir())

    with environment(content("1.0")) as used:
        os.utime(Path(used.python).parents[1] / MADE, (0, 0))
        for number, name in enumerate(["2.0", "3.0", "4.0"], start=1):
            with environment(content(name)) as found:
                pass
            os.utime(Path(found.python).parents[1] / MADE, (number, number))
        assert kept() == ["1.0", "3.0", "4.0"]
    with environment(content("1.0")):
        assert kept() == ["1.0", "4.0"]


def test_a_rehearsal_waits_while_another_one_makes_an_environment(
    made: list[str], cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)

    def heartbeat(what: str) -> Heartbeat:
        if "another rehearsal" in what:  # the other one ends soon after this one waits
            threading.Timer(0.3, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        return Heartbeat(what)

    monkeypatch.setattr(environments, "Heartbeat", heartbeat)
    cache.mkdir(parents=True, mode=0o700)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with environment(CONTENT):
            pass
    assert "waiting for another rehearsal, which makes its environment" in caplog.text


def test_nobody_else_may_change_it(made: list[str], cache: Path) -> None:
    with environment(CONTENT):
        assert cache.stat().st_mode & 0o777 == 0o700
    cache.parent.chmod(0o777)
    refused = pytest.raises(EstimatorError, match=r"written to by other users .* XDG_CACHE_HOME names another place")
    with refused, environment(CONTENT):
        pass


def test_another_python_takes_the_place_of_one_that_is_not_here(
    made: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with environment(ImageContent(torch="2.8", python="3.99", requirements=("torch==2.8.*",))) as found:
        assert found.version == HERE
    assert f"Python 3.99 of the image is not on this machine: Python {HERE} takes its place" in caplog.text
