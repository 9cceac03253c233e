"""Installations that fail say why, and what to do; a Python that does not run is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from estimators.errors import EstimatorError
from estimators.rehearsal import environments
from tests.estimators.rehearsal.conftest import HERE


def install(directory: Path, requirement: str) -> None:
    with (directory / "lock").open("w") as lock:
        environments.install(directory / "environment", sys.executable, [requirement], keep=lock.fileno())


def test_a_version_that_the_index_lacks(index: None, by: str, tmp_path: Path) -> None:
    with pytest.raises(
        EstimatorError, match=rf"torch==1\.0\.\*(?s:.*)no such versions for Python {HERE}.*\. {by} reads"
    ):
        install(tmp_path, "torch==1.0.*")


def test_an_index_that_does_not_answer(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(
        EstimatorError, match=rf"No package index answers\. {by} reads .*a rehearsal that is not isolated"
    ):
        install(tmp_path, "torch==2.8.*")


def test_a_full_disk(tmp_path: Path) -> None:
    said = "error: Failed to install: torch.whl\n  cause: No space left on device (os error 28)\n"
    told = environments._explain(said, tmp_path / "environment", sys.executable, "", code=2)
    assert said.strip() in told
    assert "The disk is full: " in told
    assert f"free in {tmp_path}" in told


def test_a_shim_that_runs_nothing_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_uv", lambda: None)
    program = tmp_path / "python3.99"
    program.write_text("#!/bin/sh\necho pyenv: python3.99: command not found >&2; exit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert environments.find_python("3.99") is None
    program.write_text("#!/bin/sh\necho /opt/python3.99/bin/python\n")
    assert environments.find_python("3.99") == "/opt/python3.99/bin/python"
    assert environments.find_python(HERE) == sys.executable
