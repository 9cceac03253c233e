"""Checks a script, its command line and its channels before ranks start.

Each rank would refuse the same, after it has loaded torch. Only what every run of the script would refuse is an error
here. The ranks judge the rest. A channel without its directory is a warning, for a script may make the directory.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from smddp.cluster import without_run_variables
from smddp.display_text import shown_path
from smddp.errors import DistributedError, HyperparameterError, SmddpError
from smddp.job.channels import VARIABLE_PREFIX
from smddp.job.distribution_names import distributions_of, without_index
from smddp.job.hyperparameters import load
from smddp.job.job import is_on_sagemaker
from smddp.script_syntax import (
    PACKAGE,
    ConfigValues,
    Executed,
    Modules,
    OptionParser,
    brings_modules,
    channel_read,
    executed,
    hiding_modules,
    is_installed_here,
    only_sends,
    outside_imports,
)

_OF_SHELLS = frozenset({".sh", ".bash", ".zsh", ".sbatch"})

_HELP = frozenset({"-h", "--help"})

logger = logging.getLogger(__name__)


def check_script(modules: Modules, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise an error if every run of the script would refuse its command line or fail.

    It is a HyperparameterError for an argument, and a DistributedError for the script itself. ``environ`` has the
    variables of the ranks.
    """
    try:
        fault = next(_faults(modules, arguments, environ), None)
    except RecursionError:  # a chain of hundreds of calls or types: the script is left unjudged
        return
    if fault is not None:
        raise fault


def _faults(modules: Modules, arguments: Sequence[str], environ: Mapping[str, str]) -> Iterator[SmddpError]:
    if modules.path.suffix in _OF_SHELLS:
        yield DistributedError(
            f"{modules.path.name} is a shell script, and smddp run starts Python scripts: give it the Python script, "
            "or run the shell script by its shell."
        )
    for module in modules.started:
        if syntax := module.syntax_fault:
            line = getattr(syntax, "lineno", None)
            place = f"{module.name}, line {line}" if line else module.name
            yield DistributedError(f"{place}: {getattr(syntax, 'msg', syntax)}. Python can't compile it.")
    for name in hiding_modules(modules.directories[0]):
        logger.warning(
            "%s in %s hides the module of that name from each rank, and torch or smddp may need it: rename it",
            name,
            shown_path(modules.directories[0]),
        )
    nodes = executed(modules)
    asks_for_help = not _HELP.isdisjoint(arguments)
    if not asks_for_help and (sends := only_sends(modules, nodes)) is not None:
        yield DistributedError(
            f"{modules.script.name}, line {sends}, sends a job, and each rank would send one. Run it by python alone, "
            "without smddp run."
        )
    yield from _missing_modules(modules, nodes)
    if not asks_for_help and not _changes_arguments(modules):
        yield from _refused_hyperparameters(modules, nodes, arguments, environ)
        parser = OptionParser.of(nodes)
        if parser is not None:
            for refused in parser.faults(arguments):
                yield HyperparameterError(
                    f"{modules.script.name}: {refused}. The script has {', '.join(parser.names)}."
                )
        _tell_missing_channels(nodes, environ, by_variables=not (parser and arguments))


def _missing_modules(modules: Modules, nodes: Sequence[Executed]) -> Iterator[DistributedError]:
    """Yield the modules that this Python lacks, if every run of the script imports them."""
    if any(map(brings_modules, modules.reached)):
        return
    sure = {id(node) for _, node in nodes}
    for module, statement, name in outside_imports(modules, modules.directories):
        if id(statement) in sure and not is_installed_here(name):
            elsewhere = without_index(name)
            remedy = f". {elsewhere}" if elsewhere else f": pip install {distributions_of(name)[0]}"
            yield DistributedError(
                f"{module.name}, line {statement.lineno}, imports {name}, which this Python does not have{remedy}"
            )


def _tell_missing_channels(nodes: Sequence[Executed], environ: Mapping[str, str], *, by_variables: bool) -> None:
    """Log the channels that every run of the script reads, and whose SM_CHANNEL_* variable names no existing path.

    Without ``by_variables``, ignore those that are read from ``os.environ``: an argument may replace the variable.
    """
    if is_on_sagemaker(environ):
        return
    own = without_run_variables(environ)
    for module, node in nodes:
        read = channel_read(module, node)
        if read is None or (read.is_variable and not by_variables):
            continue
        variable = f"{VARIABLE_PREFIX}{read.name.upper()}"
        place = own.get(variable)
        if place and "://" not in place and not Path(place).exists():
            logger.warning(
                "%s, line %d, reads the channel %r, and its directory, %s=%s, does not exist. Set %s to the directory "
                "of the channel's files",
                module.name,
                getattr(node, "lineno", 1),
                read.name,
                variable,
                place,
                variable,
            )


def _refused_hyperparameters(
    modules: Modules, nodes: Sequence[Executed], arguments: Sequence[str], environ: Mapping[str, str]
) -> Iterator[SmddpError]:
    """Yield why the script's dataclass can't be read, by the reader that the ranks use."""
    calls = [module.full_name(node.func) for module, node in nodes if isinstance(node, ast.Call)]
    if f"{PACKAGE}.run" not in calls:
        return
    options = [argument[2:].partition("=")[0].partition(".")[0] for argument in arguments if argument[:2] == "--"]
    config = ConfigValues.of(
        modules,
        in_parts=[*options, *(option[3:] for option in options)],  # also of --no-amp
        read=lambda made: load(made, environ, arguments),
    )
    if (fault := config.fault) is not None:
        kind = HyperparameterError if fault.parameter == "hyperparameters" else DistributedError
        yield kind(f"{modules.script.name}: {fault.found}. {fault.remedy}")


def _changes_arguments(modules: Modules) -> bool:
    """Return whether the script may change ``sys.argv``: it does more than read parts of it."""
    for module in modules.reached:
        named = [each for each in module.nodes if isinstance(each, ast.expr) and module.full_name(each) == "sys.argv"]
        parts = [each for each in module.nodes if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load)]
        if not {id(each) for each in named} <= {id(part.value) for part in parts}:
            return True
    return False
