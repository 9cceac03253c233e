"""``smddp doctor``: each state of a machine, by programs, files and variables that stand in for it."""

from __future__ import annotations

import importlib.machinery
import json
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from smddp import cli
from smddp.cli import doctor
from smddp.cli.doctor import Finding

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
Program = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program on PATH, no home with files of AWS, no variable that a check reads."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
        *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "CUDA_VISIBLE_DEVICES"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Put a shell script on PATH."""

    def program(name: str, body: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    return program


@pytest.fixture
def torch_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a torch in the place of the installed one: only its version.py is there."""

    def torch_built_for(values: str) -> None:
        (tmp_path / "version.py").write_text(f"from typing import Optional\n__version__ = '2.9.1'\n{values}\n")
        module = types.ModuleType("torch")
        module.__spec__ = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
        monkeypatch.setitem(sys.modules, "torch", module)

    return torch_built_for


def found(name: str, tmp_path: Path) -> Finding:
    (finding,) = [each for each in doctor.examine(tmp_path / "runs") if each.name == name]
    return finding


def test_a_bare_machine_lacks_programs_and_trains_all_the_same(tmp_path: Path) -> None:
    findings = {each.name: each for each in doctor.examine(tmp_path / "runs")}
    assert {name for name in ("Docker", "MPI", "Slurm", "AWS credentials") if findings[name].state == "missing"} == {
        *("Docker", "MPI", "Slurm", "AWS credentials")
    }
    assert not [each for each in findings.values() if each.state == "broken"]
    assert all(each.needed_for and each.remedy for each in findings.values() if each.state == "missing")
    assert findings["Python"].found.startswith(sys.version.split()[0])
    assert "127.0.0.1" in findings["ports"].found


@pytest.mark.parametrize(
    ("values", "built_for"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None", "CUDA 12.8"),
        ("cuda = None\nhip: Optional[str] = '6.4'", "ROCm 6.4"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", "the CPU"),
    ],
)
def test_names_what_torch_is_built_for(
    values: str, built_for: str, tmp_path: Path, torch_built_for: Callable[[str], None]
) -> None:
    torch_built_for(values)
    assert found("torch", tmp_path).found == f"2.9.1, built for {built_for}"


def test_without_torch_is_broken_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if no such package were there
    monkeypatch.setattr(sys, "argv", ["smddp", "doctor", "--json", "--run-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    findings = {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["torch"]["state"] == "broken"
    assert "pip install torch" in findings["torch"]["remedy"]


def test_a_gpu_works_with_a_build_for_cuda_alone(
    tmp_path: Path, program: Program, torch_built_for: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    program("nvidia-smi", "echo 'GPU 0: H100'; echo 'GPU 1: H100'")
    torch_built_for("cuda: Optional[str] = '12.8'")
    assert found("GPU", tmp_path).found == "2 visible of 2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hides all of 2" in found("GPU", tmp_path).found
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    torch_built_for("cuda: Optional[str] = None")
    assert "this build of torch can't use" in found("GPU", tmp_path).found


def test_docker_that_refuses_this_user_or_does_not_run(tmp_path: Path, program: Program) -> None:
    program("docker", "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1")
    assert "usermod -aG docker" in found("Docker", tmp_path).remedy
    program("docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    assert "systemctl start docker" in found("Docker", tmp_path).remedy
    program("docker", "echo 28.2.2")
    assert found("Docker", tmp_path) == Finding(name="Docker", state="works", found="engine 28.2.2")


def test_a_program_that_does_not_answer_holds_nothing_up(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_SECONDS", 0.2)
    program("docker", "exec /bin/sleep 60")
    assert found("Docker", tmp_path).found == "docker did not answer within 0.2 s"


def test_only_open_mpi_counts(tmp_path: Path, program: Program) -> None:
    program("mpirun", "echo 'Intel(R) MPI Library 2021'")
    assert found("MPI", tmp_path).state == "missing"
    program("mpirun", "echo 'mpirun (Open MPI) 4.1.4'; echo 'Report bugs'")
    assert found("MPI", tmp_path) == Finding(name="MPI", state="works", found="mpirun (Open MPI) 4.1.4")


def test_slurm_needs_a_controller_that_answers(tmp_path: Path, program: Program) -> None:
    program("sbatch", "exit 0")
    assert "no srun, scontrol on PATH" in found("Slurm", tmp_path).found
    program("srun", "exit 0")
    program("scontrol", "echo 'Slurmctld(primary) at head is DOWN'; exit 1")
    assert found("Slurm", tmp_path).state == "missing"
    program("scontrol", "echo 'Slurmctld(primary) at head is UP'")
    assert found("Slurm", tmp_path).state == "works"


def test_finds_credentials_without_asking_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def source() -> str:
        return found("AWS credentials", tmp_path).found

    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(
        "[profile work]\nsso_start_url = https://example.com\nregion = eu-west-1\n"
    )
    (tmp_path / ".aws" / "credentials").write_text("[play]\naws_access_key_id = A\naws_secret_access_key = B\n")
    assert source().startswith("none ")
    monkeypatch.setenv("AWS_PROFILE", "play")
    assert "aws_access_key_id of profile play" in source()
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert "sso_start_url of profile work" in source()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    assert source().startswith("AWS_ACCESS_KEY_ID")


def test_little_space_is_told_and_none_to_write_to_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LITTLE_DISK", float("inf"))
    monkeypatch.setattr(doctor, "_LITTLE_SHARED_MEMORY", float("inf"))
    assert found("disk of runs", tmp_path).found.startswith("only ")
    assert "--shm-size" in found("shared memory", tmp_path).remedy
    (tmp_path / "runs").write_text("")  # a file in the place of the directory
    assert found("disk of runs", tmp_path).state == "broken"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "runs" / "none")])
    assert found("disk of TMPDIR", tmp_path).state == "broken"


def test_names_the_packages_that_an_extra_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"sagemaker": "3.21", "pathspec": "1.0", "pyyaml": "6.0", "libcst": "0.1"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(doctor, "version", version)
    findings = {each.name: each for each in doctor.examine(tmp_path / "runs")}
    assert findings["[sagemaker-v3]"].state == "works", "V3 stands in for V2"
    assert "[sagemaker]" not in findings
    assert "libcst>=1.8" in findings["[migrate]"].found
    assert findings["[migrate]"].remedy == "pip install 'smddp[migrate]'"
    assert findings["packages"].state == "broken"
    assert "torch>=2.4" in findings["packages"].found


def test_every_extra_of_a_user_is_checked() -> None:
    extras = set(tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"])
    bundles_and_developers = {"local", "dev", "docs", "benchmarks", "toolkit"}
    assert {name for names in doctor._EXTRAS for name in names} == extras - bundles_and_developers


def test_the_table_fits_80_columns_and_torch_stays_out(tmp_path: Path) -> None:
    code = "import sys; from smddp.cli import doctor; doctor._show(doctor.examine(__import__('pathlib').Path('.')))"
    code += "; assert 'torch' not in sys.modules and 'boto3' not in sys.modules"
    environment = {"PATH": str(tmp_path), "COLUMNS": "80"}
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "remedy: " in shown.stdout
