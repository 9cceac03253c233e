"""``smddp doctor``: what works on this machine, what is missing for which feature, and the remedy.

Each check looks at files, variables and programs of this machine. None imports torch, and none asks AWS.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smddp._version import __version__
from smddp.cli.installation import outdated

if TYPE_CHECKING:
    from packaging.requirements import Requirement

State = Literal["works", "missing", "broken"]

_EXTRAS = {
    ("sagemaker", "sagemaker-v3"): "the Estimator, which sends jobs",
    ("platform",): "the local platform, LocalSageMaker",
    ("vision",): "smddp demo, and the example scripts",
    ("console",): "smddp console",
    ("migrate",): "smddp migrate",
    ("trackers",): "trackers: TensorBoard, MLflow, Weights & Biases",
    ("cloudpickle",): "remote(serializer='cloudpickle')",
    ("hydra",): "smddp.hydra",
    ("loops",): "smddp.lightning, smddp.transformers",
    ("torchx",): "the scheduler of TorchX",
    ("crt",): "checksums of S3 objects in native code",
}
"""What needs the packages of each extra. Of several extras, one is enough."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's shared memory, no temporary file
_LITTLE_DISK = 2e9  # bytes: less holds few checkpoints
_LITTLE_SHARED_MEMORY = 1e9  # bytes: Docker gives a container 64 MiB, which a few batches fill
_SECONDS = 5.0
"""Time limit in seconds for the answer of another program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    name: str
    state: State
    """``broken``: smddp can't train on this machine. ``missing``: only ``needed_for`` does not work."""
    found: str
    needed_for: str = ""
    remedy: str = ""


def doctor(
    run_dir: Annotated[Path, typer.Option(help="The directory of the runs, whose disk is checked.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what works on this machine, what is missing for which feature, and the remedy.

    No request leaves this machine. Exit code 1 if something is broken that every training needs.
    """
    found = examine(run_dir)
    if as_json:
        typer.echo(json.dumps({"smddp": __version__, "findings": [asdict(each) for each in found]}, indent=2))
    else:
        _show(found)
    raise typer.Exit(int(any(each.state == "broken" for each in found)))


def examine(run_dir: Path) -> list[Finding]:
    """Return the findings of all checks, in the order in which they are shown."""
    from smddp.storage.parallel import in_parallel

    checks: list[Callable[[], Iterator[Finding]]] = [_python, _packages, _torch, _gpu, _loopback]
    checks += [partial(_disk, run_dir), _shared_memory, _docker, _mpi, _slurm, _credentials, _extras]
    # In parallel, because a program that does not answer takes up to its time limit.
    return list(chain.from_iterable(in_parallel([partial(_listed, check) for check in checks], threads=len(checks))))


def _listed(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    return list(check())


def _python() -> Iterator[Finding]:
    yield Finding(name="Python", state="works", found=f"{sys.version.split()[0]}, {sys.prefix}")


def _packages() -> Iterator[Finding]:
    """Check the packages that smddp can't do without."""
    absent = _absent("")
    if absent is None:
        yield Finding(
            name="packages",
            state="missing",
            found="smddp runs from a directory: the packages that it needs are unknown",
            needed_for="this check",
            remedy="pip install smddp",
        )
    elif absent:
        yield Finding(
            name="packages",
            state="broken",
            found=f"not installed, or too old: {', '.join(absent)}",
            needed_for="all of smddp",
            remedy=f"pip install {' '.join(repr(each) for each in absent)}",
        )
    else:
        yield Finding(name="packages", state="works", found="all that smddp requires")
    if (older := outdated()) is not None:
        yield Finding(
            name="installation",
            state="missing",
            found=older.found,
            needed_for="the commands and packages that were added since",
            remedy=older.remedy,
        )


def _torch() -> Iterator[Finding]:
    build = _torch_build()
    if build is None:
        yield Finding(
            name="torch",
            state="broken",
            found="not installed",
            needed_for="every training",
            remedy="pip install torch (for the CPU: --index-url https://download.pytorch.org/whl/cpu)",
        )
    else:
        yield Finding(name="torch", state="works", found=f"{build[0]}, built for {build[1]}")


def _gpu() -> Iterator[Finding]:
    from smddp.cluster.gpus import count_gpus, count_visible

    gpus, build = count_gpus(os.environ), _torch_build()
    visible = count_visible(gpus, os.environ)
    purpose = "training on GPUs; without, ranks train on the CPU"
    if gpus == 0:
        found, remedy = "no NVIDIA GPU", "in a container: docker run --gpus all"
    elif visible == 0:
        found = f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} hides all of {gpus}"
        remedy = "unset CUDA_VISIBLE_DEVICES"
    elif build is not None and build[1] == "the CPU":
        found, remedy = f"{gpus}, which this build of torch can't use", "install a build of torch for CUDA"
    else:
        yield Finding(name="GPU", state="works", found=f"{visible} visible of {gpus}")
        return
    yield Finding(name="GPU", state="missing", found=found, needed_for=purpose, remedy=remedy)


def _loopback() -> Iterator[Finding]:
    """Connect to a free port of 127.0.0.1, as ranks of one machine do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=_SECONDS):
                yield Finding(name="ports", state="works", found=f"127.0.0.1 connects (on port {address[1]}, free)")
    except OSError as error:
        yield Finding(
            name="ports",
            state="broken",
            found=f"127.0.0.1 does not connect: {error}",
            needed_for="the ranks of a machine, the local platform",
            remedy="bring the loopback interface up (ip link set lo up), and see what forbids listening",
        )


def _disk(run_dir: Path) -> Iterator[Finding]:
    existing = next(each for each in (run_dir.absolute(), *run_dir.absolute().parents) if each.exists())
    yield _disk_at("disk of runs", existing, "checkpoints and models", "give another --run-dir to smddp run")
    try:
        temporary = Path(tempfile.gettempdir())
    except OSError as error:
        temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - to be named only
        yield _not_writable("disk of TMPDIR", temporary, error, "temporary files", "set TMPDIR")
    else:
        yield _disk_at("disk of TMPDIR", temporary, "temporary files", "set TMPDIR to a directory with more space")


def _disk_at(name: str, directory: Path, purpose: str, remedy: str) -> Finding:
    from smddp.display_text import as_size

    try:
        with tempfile.TemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as error:
        return _not_writable(name, directory, error, purpose, remedy)
    found = f"{as_size(free)} free in {directory}"
    if free < _LITTLE_DISK:
        return Finding(name=name, state="missing", found=f"only {found}", needed_for=purpose, remedy=remedy)
    return Finding(name=name, state="works", found=found)


def _not_writable(name: str, directory: Path, error: OSError, purpose: str, remedy: str) -> Finding:
    found = f"{directory} can't be written to: {error.strerror or error}"
    return Finding(name=name, state="broken", found=found, needed_for=purpose, remedy=remedy)


def _shared_memory() -> Iterator[Finding]:
    from smddp.display_text import as_size

    size = shutil.disk_usage(_SHARED_MEMORY).total if _SHARED_MEMORY.is_dir() else 0
    if size < _LITTLE_SHARED_MEMORY:
        yield Finding(
            name="shared memory",
            state="missing",
            found=f"only {as_size(size)} in {_SHARED_MEMORY}",
            needed_for="workers of DataLoaders, which pass batches through it",
            remedy="in a container: docker run --shm-size=8g; else DataLoader(num_workers=0)",
        )
    else:
        yield Finding(name="shared memory", state="works", found=f"{as_size(size)} in {_SHARED_MEMORY}")


def _docker() -> Iterator[Finding]:
    answered, said = _ask("docker", "version", "--format", "{{.Server.Version}}")
    if answered:
        yield Finding(name="Docker", state="works", found=f"engine {said}")
        return
    if shutil.which("docker") is None:
        remedy = "https://docs.docker.com/engine/install/"
    elif "permission denied" in said:
        remedy = "sudo usermod -aG docker $USER, then log in again"
    else:
        remedy = "start it (sudo systemctl start docker), or choose another one (DOCKER_HOST, docker context use)"
    purpose = "jobs in containers: instance_type='local', the Docker executor, smddp image"
    yield Finding(name="Docker", state="missing", found=said, needed_for=purpose, remedy=remedy)


def _mpi() -> Iterator[Finding]:
    answered, said = _ask("mpirun", "--version")
    if answered and "Open MPI" in said:
        yield Finding(name="MPI", state="works", found=said)
    else:
        found = f"{said}, which is not Open MPI" if answered else said
        remedy = "apt-get install openmpi-bin, or load its module"
        yield Finding(name="MPI", state="missing", found=found, needed_for="distribution='mpi' here", remedy=remedy)


def _slurm() -> Iterator[Finding]:
    absent = [program for program in ("sbatch", "srun", "scontrol") if shutil.which(program) is None]
    answered, said = (False, f"no {', '.join(absent)} on PATH") if absent else _ask("scontrol", "ping")
    if answered:
        yield Finding(name="Slurm", state="works", found=said)
    else:
        purpose = "jobs on Slurm: smddp sbatch, the Slurm executor"
        remedy = "run smddp on a machine that submits to Slurm" if absent else "see that slurmctld runs, or SLURM_CONF"
        yield Finding(name="Slurm", state="missing", found=said, needed_for=purpose, remedy=remedy)


def _credentials() -> Iterator[Finding]:
    found = _credentials_source()
    if found is not None:
        yield Finding(name="AWS credentials", state="works", found=f"{found} (AWS was not asked)")
        return
    yield Finding(
        name="AWS credentials",
        state="missing",
        found="none in the environment or for the profile in AWS's files (a role of the instance is not looked for)",
        needed_for="jobs on AWS; the local platform needs none",
        remedy="aws configure, aws sso login, or AWS_PROFILE",
    )


def _credentials_source() -> str | None:
    """Return the source of credentials, such as the environment or the profile in use; None if absent."""
    from botocore.configloader import load_config, raw_config_parse
    from botocore.exceptions import BotoCoreError

    for variable in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        if os.environ.get(variable):
            return variable
    profile = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    keys = ("aws_access_key_id", "sso_session", "sso_start_url", "role_arn", "credential_process", "login_session")
    for variable, default in (
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        ("AWS_CONFIG_FILE", "~/.aws/config"),
    ):
        file = os.environ.get(variable, default)
        try:
            profiles = raw_config_parse(file) if "credentials" in default else load_config(file)["profiles"]
        except BotoCoreError:  # the file is absent, or can't be read
            continue
        for key in keys:
            if key in profiles.get(profile, {}):
                return f"{key} of profile {profile} in {file}"
    for variable in ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        if os.environ.get(variable):
            return variable
    return None


def _extras() -> Iterator[Finding]:
    """Check the optional packages, by the extra that installs them."""
    for names, purpose in _EXTRAS.items():
        absent = {name: missing for name in names if (missing := _absent(name)) is not None}
        if not absent:
            return  # the check of the required packages says it
        complete = [name for name, missing in absent.items() if not missing]
        label = f"[{(complete or names)[0]}]"
        if complete:
            yield Finding(name=label, state="works", found=purpose)
        else:
            found = f"not installed, or another version: {', '.join(absent[names[0]])}"
            remedy = f"pip install 'smddp{label}'"
            yield Finding(name=label, state="missing", found=found, needed_for=purpose, remedy=remedy)


def _absent(extra: str) -> list[str] | None:
    """Return the unmet requirements of an extra, of smddp itself for ""; None if smddp is not an installed package."""
    from packaging.requirements import Requirement  # slow to import, and every command imports this file

    from smddp.python_syntax import call_parser

    try:
        listed = [call_parser(Requirement, text) for text in requires("smddp") or ()]
    except PackageNotFoundError:
        return None
    chosen = [each for each in listed if _applies(each, extra) and (not extra or not _applies(each, ""))]
    return [f"{each.name}{each.specifier}" for each in chosen if not _is_met(each)]


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _is_met(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _torch_build() -> tuple[str, str] | None:
    """Return torch's version and what it is built for, from its version.py; None if it is not installed."""
    spec = importlib.util.find_spec("torch")  # finds a top-level package without importing it
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text()
    values = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*= '([^'\n]+)'", text, re.MULTILINE))
    kinds = [f"{name} {values[key]}" for key, name in (("cuda", "CUDA"), ("hip", "ROCm")) if key in values]
    return values["__version__"], kinds[0] if kinds else "the CPU"


def _ask(program: str, *arguments: str) -> tuple[bool, str]:
    """Run a program; return whether it succeeded, and the first line that it printed or what is wrong."""
    if shutil.which(program) is None:
        return False, f"no {program} on PATH"
    try:
        ended = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False, f"{program} did not answer within {_SECONDS:g} s"
    except OSError as error:
        return False, f"{program} does not start: {error.strerror}"
    if ended.returncode != 0:
        return False, " ".join((ended.stderr or ended.stdout).strip().splitlines()[-1:]) or f"{program} failed"
    return True, (ended.stdout.strip().splitlines() or [""])[0]


def _show(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    styles = {"works": "green", "missing": "yellow", "broken": "bold red"}
    for each in findings:
        lines = [each.found]
        lines += [f"needed for: {each.needed_for}"] if each.needed_for else []
        lines += [f"remedy: {each.remedy}"] if each.remedy else []
        table.add_row(Text(each.state, styles[each.state]), Text(each.name), Text("\n".join(lines)))
    Console().print(table)
