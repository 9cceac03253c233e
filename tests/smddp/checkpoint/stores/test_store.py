"""Names in a store, and which store a location means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.stores import open_store
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.s3 import S3Store
from smddp.checkpoint.stores.store import mentions, path_in_step, step_name, step_of
from smddp.errors import CheckpointError


@given(st.integers(min_value=0, max_value=10**12 - 1))
def test_a_steps_name_says_the_step(step: int) -> None:
    assert step_of(step_name(step)) == step


@pytest.mark.parametrize(
    "name",
    ["step-7", "step-00000000000\u0667", "step-0000000000007", "step-000000000007\n", "Step-000000000007", ""],
)
def test_other_names_are_no_steps(name: str) -> None:
    assert step_of(name) is None


def test_a_path_leads_to_files_of_the_step_alone() -> None:
    assert path_in_step("5f3a9c01d2e4-0007", "state.json") == "5f3a9c01d2e4-0007/state.json"
    assert path_in_step("", "model.safetensors") == "model.safetensors"
    for directory, name in (
        ("..", "state.json"),
        ("/5f3a9c01d2e4-0007", "state.json"),
        ("5f3a9c01d2e4-0007/..", "state.json"),
        ("5f3a9c01d2e4-0007", "../state.json"),
        ("5f3a9c01d2e4-0007", "manifest.json"),
        ("5f3a9c01d2e4-0007", "notes.txt"),
    ):
        with pytest.raises(CheckpointError, match="is no path of a file of a checkpoint"):
            path_in_step(directory, name)


def test_a_manifest_mentions_its_own_directory_alone() -> None:
    manifest = b'{"format": 2, "directory": "5f3a9c01d2e4-0007"}'
    assert mentions(manifest, "5f3a9c01d2e4-0007")
    assert not mentions(manifest, "5f3a9c01d2e4-0008")
    assert not mentions(manifest, "")
    assert mentions(b'{"format": 1}', "")


def test_a_location_is_a_directory_or_a_place_in_s3(tmp_path: Path) -> None:
    directory = open_store(tmp_path / "run")
    assert isinstance(directory, DirectoryStore)
    assert str(directory) == str(tmp_path / "run")
    assert isinstance(open_store(str(tmp_path)), DirectoryStore)
    assert isinstance(open_store("s3://bucket/run"), S3Store)


@pytest.mark.parametrize("location", ["", "gs://bucket/run", "https://bucket/run", Path("s3://bucket/run")])
def test_another_location_is_refused(location: str | Path) -> None:
    with pytest.raises(ValueError, match="give a directory or, as a str and not as a Path, s3://bucket/prefix"):
        open_store(location)
