"""A package index without a network, and a cache directory of the test's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.wheels import wheel

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the environments."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "smddp" / "environments"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a torch that cannot train: only the making of environments is tried with it."""
    wheel(tmp_path / "index", "torch", "2.8.0", "__version__ = '2.8.0'\n")
    wheel(tmp_path / "index", "torch", "2.9.0", "__version__ = '2.9.0'\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "uv.toml").write_text(f"no-index = true\nfind-links = ['{tmp_path / 'index'}']\n")
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


@pytest.fixture(params=["uv", pytest.param("pip", marks=pytest.mark.slow)])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What installs."""
    if request.param == "pip":
        monkeypatch.setattr("estimators.rehearsal.environments._uv", lambda: None)
    return str(request.param)
