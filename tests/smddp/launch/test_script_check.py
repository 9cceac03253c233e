"""What every rank would refuse is told before one starts; what the syntax does not decide is left to the ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from smddp.errors import SmddpError
from smddp.launch.script_check import check_script
from smddp.script_syntax import find_entry_point

CONFIG = """
import sys
from dataclasses import dataclass
import smddp

@dataclass
class Config:
    epochs: int
    lr: float = 0.1
    batch_size: int = 64
    amp: bool = False
    device: Device = None

def main(config: Config): ...

if __name__ == "__main__":
    smddp.run(main)
"""
OPTIONS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--weight-decay", type=float)
parser.add_argument("-q", action="store_true")
arguments = parser.parse_args()
"""


def test_a_shell_script_is_refused_as_one(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/bash\npython train.py\n")
    with pytest.raises(SmddpError, match=r"job.sh is a shell script, and smddp run starts Python scripts"):
        check_script(find_entry_point(path).modules, [], {})


def refusal(directory: Path, script: str, arguments: Sequence[str] = (), environ: dict[str, str] | None = None) -> str:
    path = directory / "train.py"
    path.write_text(script)
    try:
        check_script(find_entry_point(path).modules, arguments, environ or {})
    except SmddpError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        (CONFIG, ["--epochs=2", "--learning_rate", "3"], "unknown hyperparameter 'learning_rate' (did you mean 'lr'?)"),
        (CONFIG, ["--epochs=2", "--bs", "3"], "unknown hyperparameter 'bs' (did you mean 'batch_size'?)"),
        (CONFIG, ["--epochs", "two"], "epochs: expected int, found 'two'"),
        (CONFIG, ["--epochs=2", "--local-rank=0"], "torch.distributed.launch adds: start the script by torchrun or"),
        (CONFIG, [], "missing epochs"),
        (OPTIONS, ["--wd", "3"], "unrecognized arguments: --wd 3 (did you mean '--weight-decay'?)"),
        (OPTIONS, ["--weight-decay", "small"], "invalid float value: 'small'"),
    ],
)
def test_a_wrong_option_is_told(tmp_path: Path, script: str, arguments: Sequence[str], said: str) -> None:
    told = refusal(tmp_path, script, arguments)
    assert told.startswith("HyperparameterError: train.py: ")
    assert said in told


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (CONFIG, ["--epochs", "2", "--batch-size=32", "--no-amp", "--device", "cuda", "0"]),
        (CONFIG, ["--help"]),
        (CONFIG.replace("    smddp.run", "    sys.argv.remove('--fast')\n    smddp.run"), ["--epochs=2", "--fast"]),
        (CONFIG.replace("    smddp.run", "    if sys.argv[1] == 'x':\n        sys.exit()\n    smddp.run"), ["x"]),
        (
            CONFIG.replace("    smddp.run", "    from sys import exit as end\n    if end is x: end()\n    smddp.run"),
            ["x"],
        ),
        (OPTIONS, ["-q", "--weight=0.1"]),
        (OPTIONS, ["-h"]),
        ("import sys\nsys.path.insert(0, 'lib')\nimport nowhere\n", []),
        ("try:\n    import nowhere\nexcept ImportError:\n    pass\n", []),
        ("def rare():\n    import nowhere\n", []),
    ],
)
def test_what_a_run_may_take_is_not_refused(tmp_path: Path, script: str, arguments: Sequence[str]) -> None:
    assert refusal(tmp_path, script, arguments) == ""


def test_a_jobs_hyperparameters_have_priority_over_the_command_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, CONFIG, ["--wrong"], {"SM_HPS": '{"epochs": 2}'}) == ""
    assert "unknown hyperparameter 'epoch'" in refusal(tmp_path, CONFIG, ["--epochs=2"], {"SM_HPS": '{"epoch": 2}'})


CHANNEL = CONFIG.replace("epochs: int", "epochs: int = 1").replace(
    "(config: Config): ...", "(config: Config, job: smddp.Job):\n    print(job.channels['training'])"
)
VARIABLE = "import os\nprint(os.environ['SM_CHANNEL_TRAINING'])\n"


@pytest.mark.parametrize("script", [CHANNEL, VARIABLE, OPTIONS + VARIABLE])
def test_a_channel_without_its_directory_is_told_with_its_variable(
    tmp_path: Path, script: str, caplog: pytest.LogCaptureFixture
) -> None:
    absent = tmp_path / "absent"
    assert refusal(tmp_path, script, environ={"SM_CHANNEL_TRAINING": str(absent)}) == ""  # the script may make it
    (told,) = caplog.messages
    assert told.startswith("train.py, line ")
    assert f"reads the channel 'training', and its directory, SM_CHANNEL_TRAINING={absent}, does not exist." in told


@pytest.mark.parametrize("place", ["train.py", "s3://bucket/data"])
def test_a_channel_that_is_a_file_or_a_uri_is_the_scripts(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(tmp_path, CHANNEL, environ={"SM_CHANNEL_TRAINING": place}) == ""
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("script", "arguments", "environ"),
    [
        (CHANNEL, [], {"SM_CHANNEL_TRAINING": "."}),
        (CHANNEL, [], {"SM_CHANNEL_TEST": "absent"}),  # the script does not read it
        (CHANNEL, [], {"SM_CHANNEL_TRAINING": "absent", "SM_CURRENT_HOST": "algo-1"}),  # a job, maybe with a pipe
        (CHANNEL, ["--help"], {"SM_CHANNEL_TRAINING": "absent"}),
        (OPTIONS + VARIABLE, ["-q"], {"SM_CHANNEL_TRAINING": "absent"}),  # an option may replace it
        (CONFIG.replace("epochs: int", "epochs: int = 1"), [], {"SM_CHANNEL_TRAINING": "absent"}),
    ],
)
def test_a_channel_that_a_run_may_do_without_is_not_told(
    tmp_path: Path,
    script: str,
    arguments: Sequence[str],
    environ: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert refusal(tmp_path, script, arguments, environ) == ""
    assert caplog.messages == []


def test_a_missing_module_is_told_with_its_package_and_a_module_of_the_script_is_none(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import cv2_absent, json\n")
    told = refusal(tmp_path, "import mine\n")
    assert told == (
        "DistributedError: mine.py, line 1, imports cv2_absent, which this Python does not have: pip install cv2-absent"
    )


@pytest.mark.parametrize("module", ["smdistributed.dataparallel.torch", "apex"])
def test_a_module_whose_name_on_pypi_is_another_project_is_never_to_be_installed_from_there(
    tmp_path: Path, module: str
) -> None:
    told = refusal(tmp_path, f"import {module}\n")
    assert "which this Python does not have. " in told
    assert "pip install" not in told


def test_a_script_that_sends_a_job_is_told_to_be_run_without_ranks(tmp_path: Path) -> None:
    script = "import argparse\nfrom estimators import Estimator\nEstimator('train.py').fit()\n"
    assert refusal(tmp_path, script) == (
        "DistributedError: train.py, line 3, sends a job, and each rank would send one. Run it by python alone, "
        "without smddp run."
    )
    assert refusal(tmp_path, script, ["--help"]) == ""


def test_a_script_that_python_cannot_compile_is_told_with_its_line(tmp_path: Path) -> None:
    told = refusal(tmp_path, "x = 1\ny = = 2\n")
    assert told == "DistributedError: train.py, line 2: invalid syntax. Python can't compile it."


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"__init__.py": "x = (\n"}, "jobs/__init__.py, line 1: '(' was never closed. Python can't compile it."),
        ({"__init__.py": "\nimport cv2_absent\n"}, "jobs/__init__.py, line 2, imports cv2_absent"),
        (
            {"__main__.py": "from . import data\n", "data.py": "import cv2_absent"},
            "data.py, line 1, imports cv2_absent",
        ),
        (
            {"__main__.py": "from jobs import data\n" + OPTIONS, "data.py": ""},
            "jobs/__main__.py: unrecognized arguments: --wd",
        ),
        (
            {"__main__.py": OPTIONS.replace("import argparse", "import argparse, torch, jobs.data"), "data.py": ""},
            "--wd",
        ),
    ],
)
def test_a_module_is_checked_with_its_packages(
    tmp_path: Path, files: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    for name, text in {"__init__.py": "", "__main__.py": "", **files}.items():
        (tmp_path / "jobs" / name).write_text(text)
    with pytest.raises(SmddpError, match=re.escape(said)):
        check_script(find_entry_point("jobs", module=True).modules, ["--wd", "3"], {})


def test_a_file_that_hides_a_module_of_pythons_own_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "train.py").write_text("import os\n")
    (tmp_path / "queue.py").touch()
    check_script(find_entry_point(tmp_path / "train.py").modules, [], {})
    (told,) = caplog.messages
    assert told.startswith(f"queue.py in {tmp_path} hides the module of that name from each rank")
