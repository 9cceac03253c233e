"""Names say what a file is; what is not ours is not taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.format.manifest import file_names, is_attempt_name, is_file_name, is_part_name, part_of

PART_NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True).filter(is_part_name)


@given(part=PART_NAMES, count=st.integers(1, 12))
def test_each_file_of_a_part_says_whose_it_is(part: str, count: int) -> None:
    names = file_names(part, count)
    assert len(set(names)) == count
    assert names == sorted(names)
    assert all(is_file_name(name) and part_of(name) == part for name in names)


def test_one_writer_needs_no_number() -> None:
    assert file_names("model", 1) == ["model.safetensors"]
    assert file_names("model", 2) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "a.b", "ä", "x" * 65, "model-00001-of-00002", "a\n", None, 5])
def test_what_cannot_name_a_part(name: object) -> None:
    assert not is_part_name(name)


@pytest.mark.parametrize("name", ["state.json", "digests.json", "model.safetensors", "m-00001-of-00002.safetensors"])
def test_what_is_a_file_of_ours(name: str) -> None:
    assert is_file_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("manifest.json", "other.json", ".safetensors", "a.b.safetensors", "../a.safetensors", "a.safetensors "),
        *("a.safetensors.smddp-partial", "a.safetensors.sagemaker-uploading", "-00001-of-00002.safetensors", "", None),
    ],
)
def test_what_is_none(name: object) -> None:
    assert not is_file_name(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("5f3a9c01d2e4-0007", True),
        ("5f3a9c01d2e4-12345", True),
        ("5f3a9c01d2e4-007", False),
        ("5F3A9C01D2E4-0007", False),
        ("5f3a9c01d2e-0007", False),
        ("5f3a9c01d2e4-000\u0667", False),
        ("5f3a9c01d2e4-0007/", False),
        ("5f3a9c01d2e4-0007\n", False),
        ("", False),
        (None, False),
    ],
)
def test_what_the_directory_of_an_attempt_is_called(name: object, expected: bool) -> None:
    assert is_attempt_name(name) is expected
