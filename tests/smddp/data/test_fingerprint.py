"""A fingerprint stays while the data do, and changes with them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smddp.data.fingerprint import fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for name, content in (("b/2.bin", b"22"), ("a.bin", b"1"), ("b/1.bin", b"")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_it_never_changes(folder: Path) -> None:
    """Checkpoints keep it."""
    things = (folder, np.arange(3, dtype="<i4"), torch.ones(2, dtype=torch.bfloat16), "v1", 7, b"x")
    assert fingerprint(*things) == "257b2cdccd03f2dc2cc7e6d8f72d5c64"


def test_files_are_their_relative_names_and_sizes(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    assert fingerprint(folder) == fingerprint(elsewhere)
    (elsewhere / "b/2.bin").write_bytes(b"33")
    assert fingerprint(folder) == fingerprint(elsewhere)  # not read: same name and size


@pytest.mark.parametrize("change", ["grow", "add", "remove", "rename"])
def test_another_file_is_another_fingerprint(folder: Path, change: str) -> None:
    before = fingerprint(folder)
    file = folder / "b/2.bin"
    if change == "grow":
        file.write_bytes(b"222")
    elif change == "add":
        (folder / "b/3.bin").touch()
    elif change == "remove":
        file.unlink()
    else:
        file.rename(folder / "b/3.bin")
    assert fingerprint(folder) != before


def test_no_two_different_things_look_alike(folder: Path) -> None:
    zeros = np.zeros(4, dtype=np.int32)
    different: list[tuple[Any, ...]] = [
        (),
        ("",),
        ("", ""),
        ("ab", "c"),
        ("a", "bc"),
        ("1",),
        (1,),
        (b"1",),
        (folder / "a.bin",),
        (folder / "b/2.bin",),
        (folder / "b",),
        (str(folder / "b"),),
        (zeros,),
        (zeros.reshape(2, 2),),
        (zeros.astype(np.float32),),
        (zeros.astype([("x", "<i4")]),),
        (torch.zeros(4, dtype=torch.int32),),
        (torch.zeros(4),),
        (torch.tensor(0.0),),
        (torch.zeros(0),),
        (np.zeros(()),),
        (np.array(["abcd"]),),
    ]
    assert len({fingerprint(*things) for things in different}) == len(different)


def test_how_an_array_lies_in_memory_is_of_no_matter() -> None:
    table = np.arange(12).reshape(3, 4)
    assert fingerprint(table[:, ::2]) == fingerprint(table[:, ::2].copy())
    assert fingerprint(table.T) == fingerprint(np.ascontiguousarray(table.T)) != fingerprint(table)
    tensor = torch.arange(12).reshape(3, 4)
    assert fingerprint(tensor.T) == fingerprint(tensor.T.contiguous()) != fingerprint(tensor)


@pytest.mark.parametrize("thing", [1.5, None, ["a"], np.array([{}]), torch.eye(2).to_sparse()])
def test_refuses_what_it_cannot_tell(thing: object) -> None:
    with pytest.raises(ValueError, match=r"no fingerprint of .* give what decides the data"):
        fingerprint(thing)


def test_refuses_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No such file or directory: .*/absent"):
        fingerprint(tmp_path / "absent")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"data in .*: No such file or directory: .*/dangling"):
        fingerprint(tmp_path)


def test_does_not_load_torch() -> None:
    program = (
        "import sys; from smddp.data.fingerprint import fingerprint; fingerprint('a', 1); print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"
