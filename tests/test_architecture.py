"""Who may import whom is import-linter's; what it can't see stands here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for room in ("smddp", "estimators", "entrypoints") for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_private_name_of_another_package_is_imported(path: Path) -> None:
    package = path.relative_to(ROOT).parent.as_posix().replace("/", ".")
    private = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if _imports_private_name(node, package)
    ]
    assert not private, f"{path} imports private names: {private}"


def _imports_private_name(node: ast.AST, package: str) -> bool:
    if isinstance(node, ast.Import):
        return any(_is_private(alias.name) for alias in node.names)
    if not isinstance(node, ast.ImportFrom) or node.module in (None, "__future__"):
        return False
    home = node.module or ""
    if home == package or home.startswith(f"{package}."):
        return False
    if f"{package}.".startswith(f"{home.rpartition('.')[0]}."):  # a private module of a package around this one
        home = ""
    return _is_private(home) or any(_is_private(alias.name) for alias in node.names)


def _is_private(dotted: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in dotted.split("."))


USE_PUBLIC_NAMES = {"estimators/demo/run.py", "estimators/local/command.py", "estimators/pytest_plugin.py"}
"""Programs and a plugin, which take the Estimator as users do."""


def test_only_programs_import_what_a_package_around_them_offers() -> None:
    """import-linter sees no circle through a package's own ``__init__``."""
    assert {path.relative_to(ROOT).as_posix() for path in SOURCES if _imports_from_around(path)} == USE_PUBLIC_NAMES


def _imports_from_around(path: Path) -> bool:
    around = [each.as_posix().replace("/", ".") for each in path.relative_to(ROOT).parents][:-1]
    return any(
        (isinstance(node, ast.Import) and any(alias.name in around for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module in around and not _are_modules(node))
        for node in ast.walk(ast.parse(path.read_text()))
    )


def _are_modules(node: ast.ImportFrom) -> bool:
    home = ROOT / (node.module or "").replace(".", "/")
    return all((home / alias.name).is_dir() or (home / f"{alias.name}.py").is_file() for alias in node.names)


@pytest.mark.parametrize("root", ["smddp", "estimators"])
def test_the_contributors_table_has_each_room_in_the_order_of_its_layer(root: str) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.partition(f"| room of `{root}/` |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines()[1:] for name in re.findall(r"`(\w+)(?:/|\.py)`", row.split("|")[1])]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == [root])
    height = {room: -number for number, layer in enumerate(layers) for room in layer.split(" | ")}
    assert sorted(named) == sorted(height)
    assert [height[name] for name in named] == sorted((height[name] for name in named), reverse=True)


KEEP_WHAT_THEY_INHERIT = {
    "smddp/launch/mpi_rank.py": "a launcher's rank",
    "smddp/collectives/program.py": "a launcher's rank",
    "estimators/remote_function/smddp_call.py": "a launcher's rank",
    "smddp/container/virtual_environment.py": "starts no program",
    "estimators/job_handle/matcher.py": "starts no program, and imports nothing of this project",
    "estimators/local/directory_reaper.py": "starts no program, and imports nothing of this project",
    "estimators/local/executors/host_supervisor.py": "resets it itself, and imports nothing of this project",
    "estimators/local/executors/docker/container_reaper.py": "resets it itself, and imports nothing of this project",
}
PROGRAMS = [
    path
    for path in SOURCES
    if (name := path.relative_to(ROOT).as_posix()) not in KEEP_WHAT_THEY_INHERIT
    and not name.startswith("entrypoints/")
    and (name == "smddp/cli/program.py" or '\nif __name__ == "__main__":\n' in path.read_text())
]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_program_first_resets_what_it_has_inherited(path: Path) -> None:
    body = ast.parse(path.read_text()).body
    mains = [each.body for each in body if isinstance(each, ast.FunctionDef) and each.name == "main"]
    guards = [each.body for each in body if isinstance(each, ast.If)]
    first = next(each for each in [*mains, *guards][0] if not isinstance(getattr(each, "value", None), ast.Constant))
    assert ast.unparse(first) == "reset_inherited()"


@pytest.mark.parametrize("entry_point", sorted((ROOT / "entrypoints").rglob("*.py")), ids=lambda p: p.name)
def test_entry_points_see_only_smddp_and_torch(entry_point: Path) -> None:
    allowed = {"smddp", "torch", "torchvision", "numpy"} | set(sys.stdlib_module_names)
    if entry_point.parent.name == "hydra_digits":
        allowed |= {"hydra", "omegaconf", "sklearn"}
    imported = set()
    for node in ast.walk(ast.parse(entry_point.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= allowed


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import smddp", ("torch", "boto3", "numpy")),
        ("import smddp.cluster", ("torch", "boto3", "numpy")),
        ("import smddp.container", ("torch", "boto3")),
        ("from smddp.checkpoint import CheckpointInfo, list_checkpoints", ("torch", "boto3", "numpy")),
        ("import estimators.job_handle.files", ("torch",)),
        ("import smddp.cli", ("torch", "boto3", "sagemaker", "moto", "numpy")),
        ("import smddp.cli", ("estimators.docker.build", "estimators.source_code")),
        ("import estimators", ("torch", "boto3", "sagemaker", "moto")),
        ("from estimators import Estimator", ("torch", "boto3", "sagemaker", "moto")),
        ("from estimators.local import LocalSageMaker", ("torch", "sagemaker", "moto")),
    ],
)
def test_import_stays_light(statement: str, forbidden: tuple[str, ...]) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    assert not set(forbidden) & set(loaded)
