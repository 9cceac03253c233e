"""What is uploaded: checked first, with the installed smddp if the code imports it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from estimators import source_code
from estimators.errors import EstimatorError
from estimators.source_code import SourceCode

SCRIPT = "import smddp\n\nsmddp.run(print)\n"


def local(entry_point: str, source_dir: Path | None = None, *dependencies: Path) -> SourceCode:
    return SourceCode.of(
        {
            "entry_point": entry_point,
            "source_dir": source_dir and str(source_dir),
            "dependencies": [str(path) for path in dependencies],
        }
    )


def problems(code: SourceCode, **given: Any) -> list[str]:
    options = {"py_version": None, "isolated": False, **given}
    return [f"{p.severity}: {p}" for p in source_code.check(code, **options)]


def snapshot(directory: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def code(tmp_path: Path) -> Path:
    directory = tmp_path / "code"
    (directory / "layers").mkdir(parents=True)
    (directory / "train.py").write_text(SCRIPT)
    (directory / "layers" / "__init__.py").write_text("")
    (directory / "requirements.txt").write_text("einops==0.8\nSafetensors==0.5  # pinned\n-f wheels")
    return directory


def test_smddp_and_its_light_requirements_are_added(code: Path) -> None:
    before = snapshot(code)
    bundle = source_code.stage(local("train.py", code))
    assert bundle.directory is not None
    assert bundle.source.source_dir == str(bundle.directory)
    staged = snapshot(bundle.directory)
    assert before.items() - {("requirements.txt", before["requirements.txt"])} <= staged.items()
    assert "smddp/__init__.py" in staged
    assert not [name for name in staged if "__pycache__" in name]
    lines = staged["requirements.txt"].decode().splitlines()
    assert lines[:3] == ["einops==0.8", "Safetensors==0.5  # pinned", "-f wheels"]
    names = {line.partition(">")[0] for line in lines[3:]}
    assert names == {"numpy", "packaging", "xxhash"}
    bundle.remove()
    assert not bundle.directory.exists()
    assert snapshot(code) == before


def test_a_script_alone_is_bundled_alone(code: Path) -> None:
    bundle = source_code.stage(local(str(code / "train.py")))
    assert bundle.directory is not None
    assert {path.name for path in bundle.directory.iterdir()} == {"train.py", "smddp", "requirements.txt"}
    assert bundle.source.entry_point == "train.py"
    bundle.remove()


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("import os, smddp\n", True),
        ("from smddp.data import ElasticSampler\n", True),
        ("def main():\n    import smddp.job as job\n", True),
        ("# import smddp\nname = 'smddp'\n", False),
        ("import smddp_plus\n", False),
        ("from .smddp import run\n", False),
    ],
)
def test_only_code_that_imports_smddp_gets_it(tmp_path: Path, text: str, needed: bool) -> None:
    (tmp_path / "train.py").write_text(text)
    assert source_code.needs_package(local("train.py", tmp_path)) == needed


def test_an_import_in_another_file_or_a_dependency_counts(tmp_path: Path) -> None:
    main, library = tmp_path / "main", tmp_path / "library"
    (main / "package").mkdir(parents=True)
    library.mkdir()
    (main / "train.py").write_text("import package\n")
    assert not source_code.needs_package(local("train.py", main, library))
    (library / "loop.py").write_text("import smddp\n")
    assert source_code.needs_package(local("train.py", main, library))
    assert not source_code.needs_package(local("train.py", main))
    (main / "package" / "__init__.py").write_text("import smddp\n")
    assert source_code.needs_package(local("train.py", main))


def test_code_that_brings_its_own_smddp_keeps_it(code: Path) -> None:
    (code / "smddp").mkdir()
    bundle = source_code.stage(local("train.py", code))
    assert bundle.directory is None
    assert bundle.source.source_dir == str(code)


@pytest.mark.parametrize(
    "arguments",
    [
        {"entry_point": "train.py", "source_dir": "s3://bucket/sourcedir.tar.gz"},
        {"entry_point": "train.py", "source_dir": "src", "git_config": {"repo": "https://example.com/a.git"}},
    ],
)
def test_code_elsewhere_is_left_alone_and_said_so(arguments: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    code = SourceCode.of(arguments)
    assert not problems(code)
    assert source_code.stage(code).directory is None
    assert "smddp is not added" in caplog.text


def test_a_missing_script_is_named_with_its_neighbours(code: Path) -> None:
    (problem,) = problems(local("trian.py", code))
    assert "trian.py" in problem
    assert "Did you mean 'train.py'" in problem


def test_missing_directories_and_dependencies_are_found(code: Path) -> None:
    assert "no directory" in problems(local("train.py", code / "nowhere"))[0]
    assert "nothing.py" in problems(local("train.py", code, code / "nothing.py"))[0]


def test_a_script_outside_of_source_dir_is_refused(code: Path, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("")
    assert "outside of source_dir" in problems(local("../other.py", code))[0]
    assert "outside of source_dir" in problems(local(str(tmp_path / "other.py"), code))[0]


def test_an_absolute_path_inside_source_dir_becomes_relative(code: Path) -> None:
    inside = local(str(code / "train.py"), code)
    assert inside.entry_point == "train.py"
    assert not problems(inside)


def test_a_syntax_error_is_found_with_its_line(code: Path) -> None:
    (code / "train.py").write_text("import os\n\nfor x in\n")
    (problem,) = problems(local("train.py", code), py_version="py310")
    assert problem.startswith("error")
    assert "line 3" in problem


def test_syntax_of_a_newer_python_in_the_container_is_only_warned_of(code: Path) -> None:
    (code / "train.py").write_text("for x in\n")
    newer = f"py{sys.version_info[0]}{sys.version_info[1] + 1}"
    assert problems(local("train.py", code), py_version=newer)[0].startswith("warning")
    assert problems(local("train.py", code), py_version="py310")[0].startswith("error")
    assert problems(local("train.py", code), py_version=None)[0].startswith("warning")


def test_a_shell_script_is_not_compiled(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("for x in\n")
    assert not problems(local("train.sh", tmp_path))


def test_requirements_without_a_network_are_warned_of(code: Path) -> None:
    (problem,) = problems(local("train.py", code), isolated=True)
    assert problem.startswith("warning: enable_network_isolation")
    assert "safetensors" in problem


def test_a_script_that_spawns_ranks_below_a_launcher_is_warned_of(code: Path) -> None:
    (code / "train.py").write_text("import torch.multiprocessing as mp\n\nmp.spawn(print, nprocs=2)\n")
    (problem,) = problems(local("train.py", code), launcher="torchrun")
    assert problem.startswith(
        f"warning: distribution: {code}/train.py spawns ranks in line 3, and the distribution (to"
    )
    assert "in a job without distribution" in problem
    assert not problems(local("train.py", code))


def test_the_requirements_leave_out_what_images_have_and_the_command_line_needs() -> None:
    assert {requirement.name for requirement in source_code.package_requirements()} == {
        "numpy",
        "packaging",
        "safetensors",
        "xxhash",
    }


def test_for_local_mode_any_code_is_copied_with_its_dependencies(code: Path, tmp_path: Path) -> None:
    (code / "train.py").write_text("print('never heard of smddp')\n")
    library, single = tmp_path / "library", tmp_path / "single.py"
    library.mkdir()
    (library / "part.py").write_text("")
    single.write_text("")
    bundle = source_code.stage(local("train.py", code, library, single), into=tmp_path / "bundle")
    assert bundle.source.source_dir == str(tmp_path / "bundle")
    assert bundle.source.dependencies == ()
    copied = {path.relative_to(tmp_path / "bundle").as_posix() for path in (tmp_path / "bundle").rglob("*")}
    assert {"train.py", "library/part.py", "single.py"} <= copied
    assert "smddp" not in copied


def test_what_the_job_itself_makes_in_the_code_is_not_copied(code: Path, tmp_path: Path) -> None:
    """Also not the copy itself, which would hold itself without end."""
    (code / "checkpoints").mkdir()
    (code / "checkpoints" / "step").write_text("much")
    (code / "nowhere").symlink_to("removed")
    (code / "elsewhere").symlink_to(tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table").write_text("")
    (code / "job").mkdir()
    source_code.stage(local("train.py", code), into=code / "job" / "code", without=[code / "checkpoints"])
    copied = {path.name for path in (code / "job" / "code").iterdir()}
    assert {"train.py", "elsewhere"} <= copied
    assert not {"checkpoints", "job", "nowhere"} & copied
    assert (code / "job" / "code" / "elsewhere" / "table").exists()


def test_code_that_cannot_be_copied_says_which(code: Path, tmp_path: Path) -> None:
    (code / "circle").symlink_to(".")
    with pytest.raises(EstimatorError, match=r"source_dir, dependencies: the code can't be copied: .*circle"):
        source_code.stage(local("train.py", code), into=tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
