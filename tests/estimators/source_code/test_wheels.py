"""What smddp needs, downloaded by the real pip from a directory of wheels."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from estimators.errors import EstimatorError
from estimators.source_code import package_requirements, package_wheels
from tests.wheels import wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    for requirement in package_requirements():
        wheel(tmp_path, requirement.name, "2000.0", "")
    return tmp_path


@pytest.mark.slow
def test_the_wheels_are_those_of_the_images_python_and_processors(index: Path) -> None:
    pure = index / "xxhash-2000.0-py3-none-any.whl"
    tags = [f"cp312-cp312-manylinux_2_{glibc}_{processor}" for glibc, processor in ((17, "x86_64"), (28, "aarch64"))]
    for tag in (*tags, "cp313-cp313-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_99_x86_64"):
        pure.with_name(f"xxhash-2000.0-{tag}.whl").write_bytes(pure.read_bytes())
    pure.unlink()
    others = {f"smddp-wheels/{name}-2000.0-py3-none-any.whl" for name in ("numpy", "packaging", "safetensors")}
    found = package_wheels("py312", ["ml.g5.xlarge", "ml.g5g.xlarge", "ml.c7gn.large", "ml.g6.xlarge"])
    assert set(found) == others | {f"smddp-wheels/xxhash-2000.0-{tag}.whl" for tag in tags}
    (index / "copy.whl").write_bytes(found[f"smddp-wheels/xxhash-2000.0-{tags[0]}.whl"])
    assert zipfile.is_zipfile(index / "copy.whl")


@pytest.mark.slow
def test_what_cannot_be_had_is_named(index: Path) -> None:
    (index / "xxhash-2000.0-py3-none-any.whl").unlink()
    with pytest.raises(EstimatorError, match=r"wheels for Python 3\.12 on x86_64: .*No matching distribution.*xxhash"):
        package_wheels("py312", ["ml.m5.xlarge"])
    with pytest.raises(EstimatorError, match="py_version='py3' is no version of Python with wheels"):
        package_wheels("py3", ["ml.m5.xlarge"])
