"""The facts of a job's script, read once from its syntax for all checks: nothing of it is imported or run.

The job's own reader and argparse judge its hyperparameters, so that what passes here passes in the job. A script that
reads them otherwise, by sys.argv, Hydra, click or SM_HP_*, gives no problem. What works on this machine, and not on the
hosts of the job, may be intended: it is a warning.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from estimators.errors import Problem, error, warning
from smddp.container.contract import OWN_HYPERPARAMETERS, PLATFORM_PREFIX
from smddp.container.environment import user_arguments
from smddp.job.hyperparameters import decode
from smddp.job.model_parallel import OTHER_DEGREES, SHARD_DEGREE
from smddp.script_syntax import (
    PACKAGE,
    ConfigValues,
    Executed,
    Modules,
    OptionParser,
    PythonModule,
    channel_read,
    executed,
    only_sends,
)

_NO_STR = frozenset({"null", "true", "false"})
"""Texts of None, True and False in a request; of a str they would have quotes."""
_TRAINER, _SHARDED = f"{PACKAGE}.Trainer", f"{PACKAGE}.Sharded"
_FULLY_SHARD = "fully_shard"
_PARALLEL = frozenset({"parallel", "ddp", None})
"""The Trainer's arguments that may divide the weights; None stands for ``**options``."""
_OLDEST_TORCH = Version("2.6")
"""The first PyTorch that has what `smddp.Sharded` needs."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """A script, and how it reads the hyperparameters of its job."""

    modules: Modules
    """The script and its modules."""
    nodes: Sequence[Executed]
    """What every run of the script executes."""
    texts: Mapping[str, str]
    """The job's hyperparameters, as text in the request."""
    config: ConfigValues
    """What the script reads from them into its dataclass."""

    @classmethod
    def of(cls, modules: Modules, texts: Mapping[str, str]) -> ScriptFacts:
        """Read the facts; `texts` has the job's hyperparameters as the request does."""
        return cls(modules=modules, nodes=executed(modules), texts=texts, config=_config(modules, texts))

    def check(
        self, *, channels: Collection[str], has_gpus: bool, shares_checkpoints: bool, own_image: bool
    ) -> Iterator[Problem]:
        """Yield what the script would refuse, and what works on this machine only.

        `channels`, `has_gpus` and `shares_checkpoints` tell of the job's data, of its hosts, and whether they save to
        one place. `own_image` means an image of the user's, not of AWS.
        """
        yield from _check_sends_itself(self.modules, self.nodes)
        yield from _check_hyperparameters(self.config, self.nodes, self.texts, own_image=own_image)
        yield from _check_channels(self.nodes, channels)
        yield from _check_paths(self.modules)
        if not has_gpus:
            yield from _check_cuda(self.nodes)
        if not shares_checkpoints:
            yield from _check_shards(self.modules)
        yield from _check_guard(self.modules)

    def check_model_parallel(self, parameters: Mapping[str, Any], *, aws_version: str | None) -> Iterator[Problem]:
        """Yield the problems of a modelparallel job: a Trainer without sharding, refused degrees, an old PyTorch.

        Scripts without smddp's Trainer or Sharded are not checked. `parameters` are those of modelparallel;
        `aws_version` is the PyTorch of AWS's image for the job, or None.
        """
        calls = [
            (module, call, module.full_name(call.func) or "")
            for module in self.modules.reached
            for call in module.calls
        ]
        names = {name for _, _, name in calls}
        for module, call, name in calls:
            if name == _TRAINER and _has_whole_model(call) and not any(each.endswith(_FULLY_SHARD) for each in names):
                yield warning(
                    "entry_point",
                    f"{module.path}, line {call.lineno}, makes a Trainer that divides no weights, and the job asks for "
                    "modelparallel: the Trainer will refuse it",
                    "Give it parallel=smddp.Sharded.from_job(job, wrap=(Block,)), or leave modelparallel out.",
                )
        for name in OTHER_DEGREES:
            degree = parameters.get(name)
            if f"{_SHARDED}.from_job" in names and type(degree) is int and degree > 1:
                yield error(
                    "distribution",
                    f"asks for {name}={degree}, and the script's smddp.Sharded.from_job divides weights alone",
                    f"Give 1, and a larger {SHARD_DEGREE}, or train with AWS's torch.sagemaker.",
                )
        if names & {_SHARDED, f"{_SHARDED}.from_job"} and aws_version is not None and _is_too_old(aws_version):
            yield error(
                "image_uri",
                f"missing: for modelparallel the SDK takes AWS's image of SMP, with PyTorch {aws_version}, and "
                f"smddp.Sharded needs {_OLDEST_TORCH} or later",
                f"Give the URI of an image with PyTorch {_OLDEST_TORCH} or later, such as AWS's for PyTorch.",
            )


def _config(modules: Modules, texts: Mapping[str, str]) -> ConfigValues:
    in_parts = [name.partition(".")[0] for name in texts if "." in name]
    # A bare null is None, or the str "null" of a submitter that does not quote it: a str field reads "null".
    values = {name: json.loads(text) if text in _NO_STR else text for name, text in texts.items()}
    return ConfigValues.of(modules, in_parts=in_parts, read=lambda made: decode(made, values))


def _check_sends_itself(modules: Modules, nodes: Sequence[Executed]) -> Iterator[Problem]:
    """Yield the error that the job would run this process's own script, which sends it."""
    this = getattr(sys.modules["__main__"], "__file__", None)  # None in a notebook
    if this is None or Path(this).resolve() != modules.path.resolve():
        return
    if (line := only_sends(modules, nodes)) is not None:
        yield error(
            "entry_point",
            f"{modules.path}, line {line}, sends this job: the job would run the same script and send itself again",
            "Give the training script, in a file of its own.",
        )


def _check_hyperparameters(
    config: ConfigValues, nodes: Sequence[Executed], texts: Mapping[str, str], *, own_image: bool
) -> Iterator[Problem]:
    """Yield the hyperparameter problems.

    `nodes` are those that every run of the script executes. `texts` are the request's hyperparameters.
    `own_image`: a program other than the toolkit may start the script, with other options.
    """
    if (fault := config.fault) is not None:
        yield error(fault.parameter, fault.found, fault.remedy)
    parser = OptionParser.of(nodes)
    if parser is None:
        return
    given = {name: json.loads(text) for name, text in texts.items() if _is_users(name)}
    arguments, severe = user_arguments(given), warning if own_image else error
    has = f"The script has {', '.join(parser.names)}"
    for refused in parser.faults(arguments):
        remedy = f"{has}; each hyperparameter reaches it as such an option with a value."
        yield severe("hyperparameters", f"argparse refuses them: {refused}", remedy)
    if ignored := parser.ignored(arguments):
        yield warning("hyperparameters", f"the script's parse_known_args ignores {ignored}", f"{has}.")
    for misread in parser.read_as_true(arguments):
        yield severe(
            "hyperparameters",
            f"argparse reads {misread} as True: the option's type=bool is False for an empty text alone",
            "Give the option choices=['True', 'False'] in place of type=bool and compare the text, or read the "
            "hyperparameters with smddp.run(main), which takes booleans.",
        )


def _is_users(name: str) -> bool:
    return not name.startswith(PLATFORM_PREFIX) and name not in OWN_HYPERPARAMETERS


def _check_channels(nodes: Sequence[Executed], channels: Collection[str]) -> Iterator[Problem]:
    """Yield the channels that every run of the script reads, and that the job does not have."""
    in_capitals = {name.upper() for name in channels}
    read: dict[str, str] = {}
    for module, node in nodes:
        if (found_read := channel_read(module, node)) is not None and found_read.name.upper() not in in_capitals:
            read.setdefault(found_read.name, f"{module.path}, line {getattr(node, 'lineno', 1)},")
    for name, place in read.items():
        found = f"{place} reads the channel {name!r}, and the job has {', '.join(channels) or 'none'}"
        remedy = f"Give fit() {{{name!r}: 's3://…'}}."
        if channels:
            remedy = f"Give fit() a channel named {name!r}, or let the script read another name."
        yield error("inputs", found, remedy)


def _has_whole_model(trainer: ast.Call) -> bool:
    return _PARALLEL.isdisjoint(keyword.arg for keyword in trainer.keywords)


def _is_too_old(version: str) -> bool:
    try:
        return Version(version) < _OLDEST_TORCH
    except InvalidVersion:  # the check of the parameter says so
        return False


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
