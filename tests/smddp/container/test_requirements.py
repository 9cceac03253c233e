from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from estimators import source_code
from smddp.container.requirements import already_installed, cause, install_requirements
from tests.wheels import wheel


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("packaging>=20", True),
        ("packaging >= 20  # a comment", True),
        ("# only a comment", True),
        ("", True),
        ("no-such-thing; python_version < '3'", True),
        ("--index-url https://example.invalid/simple", True),
        ("--find-links=wheels", True),
        ("-i https://example.invalid/simple", True),
        ("--no-index", True),
        ("packaging>=2000", False),
        ("no-such-thing", False),
        ("packaging[extra]", False),
        ("packaging @ file:///tmp/packaging.whl", False),
        ("-r other.txt", False),
        ("-e .", False),
        ("./local.whl", False),
        ("======= theirs", False),
        ("packaging==24.2 --hash=sha256:abc", False),
    ],
)
def test_knows_what_is_plain_and_installed(line, answer):
    assert already_installed(["packaging", line]) is answer


def test_installs_nothing_when_all_is_there(opt_ml):
    opt_ml.code("train.py", "import sys; print(sys.executable)").code("requirements.txt", "packaging>=20\n")
    opt_ml.hyperparameters(sagemaker_program="train.py")
    done = opt_ml.train()
    assert done.stdout.strip() == sys.executable
    assert "All of requirements.txt is installed already." in done.stderr
    assert not (opt_ml.base / "venv").exists()


def test_says_nothing_of_a_requirements_file_that_the_bundle_alone_has_made(tmp_path, caplog):
    caplog.set_level("INFO")
    (tmp_path / "requirements.txt").write_text(source_code.with_requirements("", [Requirement("packaging")]))
    assert install_requirements(tmp_path, tmp_path / "venv", package=False, environ={}) == sys.executable
    assert not caplog.messages


@pytest.mark.slow
def test_installs_into_the_job_s_own_environment_on_top_of_what_is_here(opt_ml):
    wheel(opt_ml.base / "code" / "wheels", "smddp_test_only", "1.0", "WHERE = __file__")
    wheel(opt_ml.base / "code" / "wheels", "packaging", "2000.0", "__version__ = 'of the job'")
    opt_ml.code("requirements.txt", "--no-index\n--find-links wheels\nsmddp_test_only==1.0\npackaging>=2000\n")
    script = "import smddp_test_only, packaging, smddp, boto3, shutil, sys\n"
    script += "print(smddp_test_only.WHERE, packaging.__version__, shutil.which('python') == sys.executable, sep='|')"
    opt_ml.code("train.py", script).hyperparameters(sagemaker_program="train.py")
    done = opt_ml.train()
    assert done.returncode == 0, done.stderr
    where, version, first_on_path = done.stdout.splitlines()[-1].split("|")
    assert Path(where).is_relative_to(opt_ml.base / "venv")
    assert (version, first_on_path) == ("of the job", "True")
    ours = "import importlib.util, packaging; print(importlib.util.find_spec('smddp_test_only'), packaging.__version__)"
    here = subprocess.check_output([sys.executable, "-c", ours], text=True).split()
    assert here[0] == "None"
    assert not here[1].startswith("of")


@pytest.mark.slow
def test_the_failure_holds_pip_s_last_lines(opt_ml):
    opt_ml.code("train.py", "").code("requirements.txt", "--no-index\nno-such-distribution==1.0\n")
    opt_ml.hyperparameters(sagemaker_program="train.py")
    done = opt_ml.train()
    assert done.returncode == 1
    assert (opt_ml.failure or "").startswith("pip could not install -r requirements.txt (exit code 1):\n")
    assert "No matching distribution found for no-such-distribution==1.0" in (opt_ml.failure or "")


@pytest.mark.slow
def test_the_failure_of_a_build_is_the_build_s_own(opt_ml):
    fault = 'raise RuntimeError("CUDA_HOME is not set: " + "this package needs nvcc")'
    opt_ml.code("needs_cuda/setup.py", fault).code("train.py", "")
    opt_ml.code("requirements.txt", "--no-index\n./needs_cuda\n").hyperparameters(sagemaker_program="train.py")
    done = opt_ml.train(PIP_NO_BUILD_ISOLATION="0")
    assert done.returncode == 1
    said = (opt_ml.failure or "").splitlines()
    assert said[0] == "pip could not install -r requirements.txt (exit code 1):"
    assert said[1].endswith("did not run successfully.")
    assert said[-1] == "RuntimeError: CUDA_HOME is not set: this package needs nvcc"
    assert len(said) <= 10


def test_the_cause_is_the_last_program_s_output_without_pip_s_closing_words():
    shown = """\
Collecting a
  error: subprocess-exited-with-error

  × python setup.py bdist_wheel did not run successfully.
  │ exit code: 1
  ╰─> [2 lines of output]
      gcc -c a.c
      a.c:1:10: fatal error: cuda.h: No such file or directory
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
ERROR: Failed building wheel for a
ERROR: Could not build wheels for a, which is required to install pyproject.toml-based projects

[notice] A new release of pip is available: 24.0 -> 25.0
"""
    found = cause(shown).splitlines()
    assert found[0] == "python setup.py bdist_wheel did not run successfully."
    assert found[1:] == ["gcc -c a.c", "a.c:1:10: fatal error: cuda.h: No such file or directory"]
    assert cause(shown.partition("output]\n")[2]).splitlines() == found[1:]
    plain = "ERROR: No matching distribution found for b==9\n\n[notice] To update, run: pip install --upgrade pip\n"
    assert cause(plain).strip() == "ERROR: No matching distribution found for b==9"


def test_a_stop_ends_pip(opt_ml):
    fifo = opt_ml.base / "code" / "requirements.txt"
    opt_ml.code("train.py", "print('ran')").hyperparameters(sagemaker_program="train.py")
    fifo.write_text("-r never.txt\n")
    os.mkfifo(opt_ml.base / "code" / "never.txt")  # pip waits for a writer
    process = opt_ml.start()
    assert process.stderr is not None
    while "Installing -r requirements.txt" not in process.stderr.readline():
        pass
    process.terminate()
    assert process.wait(timeout=20) == 143
    assert opt_ml.failure is None


def test_a_comment_in_another_encoding_does_no_harm(tmp_path):
    (tmp_path / "requirements.txt").write_bytes(b"packaging>=20  # caf\xe9\n")
    assert install_requirements(tmp_path, tmp_path / "venv", package=False, environ={}) == sys.executable
