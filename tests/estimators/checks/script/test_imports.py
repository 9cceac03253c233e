"""A module that the job lacks is told with its line; one that the script can do without is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.checks.script import imports
from estimators.errors import Problem
from estimators.source_code import SourceCode
from smddp.script_syntax import executed

AWS = imports.Installed(where="known to be in AWS's image", has={"torch", "numpy"}.__contains__, is_complete=False)
HERE = imports.Installed(where="in this Python", has={"torch", "numpy"}.__contains__, is_complete=True)


def problems(
    directory: Path, script: str, *, installed: imports.Installed = AWS, requirements: str | None = None
) -> list[Problem]:
    (directory / "train.py").write_text(script)
    if requirements is not None:
        (directory / "requirements.txt").write_text(requirements)
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(directory)})
    return list(imports.check(source, executed(source.modules), installed))


def test_a_missing_module_is_told_with_its_first_line_and_its_package(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("import torch\nimport cv2.dnn\nfrom cv2 import imread\n")
    (problem,) = problems(tmp_path, "import os, numpy\nimport data\n")
    assert str(problem) == (
        "entry_point: cv2 is imported (data.py, line 2), and neither in requirements.txt nor in source_dir nor known "
        "to be in AWS's image. Add opencv-python to requirements.txt in source_dir."
    )
    assert problem.severity == "warning"


def test_a_module_whose_name_on_pypi_is_another_project_is_not_to_be_a_requirement(tmp_path: Path) -> None:
    told = problems(tmp_path, "import smdistributed.dataparallel.torch.torch_smddp\nimport apex\n")
    assert len(told) == 2
    assert not any("requirements.txt" in problem.remedy for problem in told)


def test_it_is_an_error_only_if_the_runtime_is_known_and_every_run_imports_it(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "import albumentations\n", installed=HERE)
    assert problem.severity == "error"
    (problem,) = problems(tmp_path, "def rare():\n    import albumentations\n", installed=HERE)
    assert problem.severity == "warning"


@pytest.mark.parametrize(
    "script",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nowhere\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import nowhere\n",
        "try:\n    import nowhere\nexcept ImportError:\n    nowhere = None\n",
        "try:\n    import nowhere\nexcept (ModuleNotFoundError, OSError):\n    import elsewhere\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import nowhere\n",
        "from importlib.util import find_spec\nif find_spec('nowhere'):\n    import nowhere\n",
        "from . import own\nimport own, deeper, folder.part, smddp\n",
        "if True:\n    import torch.nn\n",
        "import sys\nsys.path.insert(0, 'a/b/c')\nimport nowhere\n",
        "from sys import path\npath.append('a/b/c')\nimport nowhere\n",
        "import sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])\nimport nowhere\n",
        "import os\nos.system('pip install -q x')\nimport nowhere\n",
        f"import torch\nif {' + '.join(['x'] * 1500)} and find_spec('nowhere'):\n    import nowhere\n",
    ],
)
def test_what_the_script_can_do_without_or_has_itself_is_not_told(tmp_path: Path, script: str) -> None:
    for file in ("own.py", "src/deeper.py", "folder/part.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert problems(tmp_path, script, installed=HERE) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("opencv_python_headless==4.11  # pinned", False),
        ("opencv-contrib-python>=4; python_version > '3'", False),
        ("https://example.invalid/wheels/cv2.whl", False),
        ("-r more.txt", False),
        ("--no-index", True),
        ("# opencv-python", True),
        ("opencv", True),
    ],
)
def test_requirements_name_the_package_or_can_bring_anything(tmp_path: Path, line: str, told: bool) -> None:
    assert bool(problems(tmp_path, "import cv2\n", requirements=f"einops\n{line}\n")) is told


def test_what_an_installed_requirement_requires_is_there(tmp_path: Path) -> None:
    assert problems(tmp_path, "import botocore, _pytest\n", requirements="boto3\npytest\n") == []
    assert problems(tmp_path, "import botocore\n", requirements="einops\n") != []


def test_another_handler_is_no_excuse(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "try:\n    import nowhere\nexcept ValueError:\n    pass\n")) == 1


def test_a_long_chain_of_branches_is_read(tmp_path: Path) -> None:
    chain = "".join(f"elif name == {number}:\n    pass\n" for number in range(1500))
    assert len(problems(tmp_path, f"name = 0\nif name:\n    pass\n{chain}import nowhere\n")) == 1
