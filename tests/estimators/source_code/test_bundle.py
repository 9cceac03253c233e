"""An archive of the same files has the same bytes, and the container's own reader takes it."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest

from estimators.errors import EstimatorError
from estimators.source_code import Contents, SourceCode, write_archive
from smddp.container.bundle import unpack


def packed(directory: Path) -> tuple[str, bytes]:
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(directory)})
    target = io.BytesIO()
    digest = write_archive(Contents.of(source).files, target)
    assert hashlib.sha256(target.getvalue()).hexdigest() == digest
    return digest, target.getvalue()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for name in ("train.py", "start.sh", "package/__init__.py", "package-data/é.json"):
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    (tmp_path / "code" / "start.sh").chmod(0o700)
    return tmp_path / "code"


def test_neither_time_nor_place_nor_caches_nor_rights_change_it(code: Path, tmp_path: Path) -> None:
    before = packed(code)
    (code / "package" / "__pycache__").mkdir()
    (code / "package" / "__pycache__" / "layers.pyc").write_text("")
    for path in code.rglob("*"):
        os.utime(path, (1, 1))
    (code / "train.py").chmod(0o600)
    code.rename(tmp_path / "elsewhere")
    assert packed(tmp_path / "elsewhere") == before


def test_a_name_a_byte_or_a_program_changes_it(code: Path) -> None:
    digests = [packed(code)[0]]
    (code / "train.py").chmod(0o755)
    digests.append(packed(code)[0])
    (code / "start.sh").write_text("# start.sh!\n")
    digests.append(packed(code)[0])
    (code / "start.sh").rename(code / "begin.sh")
    digests.append(packed(code)[0])
    (code / "logs").mkdir()
    digests += [packed(code)[0], packed(code)[0]]
    assert len(set(digests)) == 5


def test_the_container_unpacks_it(code: Path, tmp_path: Path) -> None:
    (code / "logs" / "events").mkdir(parents=True)
    (tmp_path / "sourcedir.tar.gz").write_bytes(packed(code)[1])
    (tmp_path / "there").mkdir()
    unpack(tmp_path / "sourcedir.tar.gz", tmp_path / "there", name="it")
    for path in code.rglob("*"):
        copy = tmp_path / "there" / path.relative_to(code)
        assert copy.is_dir() if path.is_dir() else copy.read_bytes() == path.read_bytes()
    assert os.access(tmp_path / "there" / "start.sh", os.X_OK)


def test_two_files_for_one_place_are_refused(code: Path, tmp_path: Path) -> None:
    (tmp_path / "package").write_text("a file")
    source = SourceCode.of(
        {"entry_point": "train.py", "source_dir": str(code), "dependencies": [str(tmp_path / "package")]}
    )
    with pytest.raises(EstimatorError, match="package would be a file in the bundle, and the directory of"):
        Contents.of(source)


def test_an_empty_directory_takes_files_of_a_dependency(code: Path, tmp_path: Path) -> None:
    (code / "library").mkdir()
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "part.py").touch()
    files = Contents.of(
        SourceCode.of({"entry_point": "train.py", "source_dir": str(code), "dependencies": [str(tmp_path / "library")]})
    ).files
    assert {"library", "library/part.py"} <= files.keys()


def test_a_file_in_the_place_of_one_of_smddp_s_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "smddp-hyperparameters.json").touch()
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(tmp_path)})
    with pytest.raises(EstimatorError, match=r"smddp needs smddp-hyperparameters.json in the bundle itself"):
        Contents.of(source, more={"smddp-hyperparameters.json": b"{}"})
