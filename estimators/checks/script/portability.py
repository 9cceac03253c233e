"""Check what in a script works on this machine, and not on the hosts of its job. Each of them may be intended."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from estimators.errors import Problem, warning
from smddp.script_syntax import PACKAGE, Executed, Modules, PythonModule

_ON_EVERY_HOST = tuple(
    map(
        Path,
        (
            *("/opt/ml", "/opt/conda", "/tmp", "/var/tmp", "/var/log"),  # noqa: S108 - compared with, not used
            *("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"),
        ),
    )
)
"""Directories that containers have, too."""
_CUDA = re.compile(r"cuda(:[0-9]+)?")
_SETS_DEVICE = "torch.cuda.set_device"
_DIVIDES = frozenset({f"{PACKAGE}.Sharded", f"{PACKAGE}.Sharded.from_job", "torch.distributed.fsdp.fully_shard"})
_TAKES_DEVICE = frozenset({"device", "map_location"})
_WORKERS = frozenset({"multiprocessing.Process", "multiprocessing.Pool", "torch.multiprocessing.Process"})


def check(
    modules: Modules, nodes: Sequence[Executed], *, has_gpus: bool, shares_checkpoints: bool
) -> Iterator[Problem]:
    """Yield the warnings; `nodes` are those that every run of the script executes."""
    yield from _check_paths(modules)
    if not has_gpus:
        yield from _check_cuda(nodes)
    if not shares_checkpoints:
        yield from _check_shards(modules)
    yield from _check_guard(modules)


def _check_paths(modules: Modules) -> Iterator[Problem]:
    for module in modules.reached:
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_only_here(node.value):
                yield warning(
                    "entry_point",
                    f"{_place(module, node)} names {node.value}, which is on this machine, and on no host of the job",
                    "Give the data as a channel of fit(), and read the path from job.channels or SM_CHANNEL_<NAME>.",
                )


def _is_only_here(text: str) -> bool:
    """Return whether a text is the path of something of this machine's own."""
    if not text.startswith("/") or "\n" in text or "\0" in text:
        return False
    path = Path(text)
    if len(path.parts) < 2 or any(path.is_relative_to(place) for place in _ON_EVERY_HOST):
        return False
    try:
        return path.exists()
    except OSError:  # no path: too long, for instance
        return False


def _check_cuda(nodes: Sequence[Executed]) -> Iterator[Problem]:
    for module, node in nodes:
        if (what := _cuda(module, node)) is not None:
            yield warning(
                "instance_type",
                f"{_place(module, node)} calls {what}, and the job's hosts have no GPU",
                "Use trainer.device, or ask torch.cuda.is_available(); or give a type with GPUs, such as ml.g5.xlarge.",
            )
            return  # the first is where the job would end


def _cuda(module: PythonModule, node: ast.AST) -> str | None:
    """Return a call that needs a GPU as it is written, or None."""
    if not isinstance(node, ast.Call):
        return None
    name = module.full_name(node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    places = [keyword.value for keyword in node.keywords if keyword.arg in _TAKES_DEVICE]
    if method == "to" or name == "torch.device":
        places += node.args[:1]
    needs_gpu = name == _SETS_DEVICE or (method == "cuda" and not node.args) or any(map(_is_cuda, places))
    return ast.unparse(node) if needs_gpu else None


def _is_cuda(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and _CUDA.fullmatch(node.value) is not None


def _check_shards(modules: Modules) -> Iterator[Problem]:
    """Yield the first call that divides a model among hosts, none of which can write a whole checkpoint."""
    for module in modules.reached:
        for call in module.calls:
            if module.full_name(call.func) in _DIVIDES:
                yield warning(
                    "checkpoint_s3_uri",
                    f"{_place(module, call)} divides a model among the job's hosts, and no place for checkpoints is "
                    "one that all hosts reach",
                    "Give checkpoint_s3_uri: each host then saves its pieces there.",
                )
                return


def _check_guard(modules: Modules) -> Iterator[Problem]:
    """Yield a call of ``smddp.run`` that a worker process would repeat, as it imports the script."""
    script = modules.script
    run = next((each for each in script.tree.body if _runs(script, each)), None)
    if run is not None and any(_starts_workers(module, node) for module in modules.reached for node in module.calls):
        yield warning(
            "entry_point",
            f"{_place(script, run)} calls smddp.run unguarded: a worker process that imports the script calls it again",
            'Put the call below `if __name__ == "__main__":`.',
        )


def _runs(module: PythonModule, statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=function)):
            return module.full_name(function) == f"{PACKAGE}.run"
    return False


def _starts_workers(module: PythonModule, call: ast.Call) -> bool:
    """Return whether a call starts processes of multiprocessing, such as the workers of a DataLoader."""
    workers = [keyword.value for keyword in call.keywords if keyword.arg == "num_workers"]
    if workers:
        return not (isinstance(workers[0], ast.Constant) and workers[0].value == 0)
    return module.full_name(call.func) in _WORKERS


def _place(module: PythonModule, node: ast.AST) -> str:
    return f"{module.path}, line {getattr(node, 'lineno', 1)},"
