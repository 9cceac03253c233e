"""A run's hyperparameters as its script reads them, through the dataclass of ``smddp.run(main)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from smddp.errors import HyperparameterError
from smddp.job.main_arguments import refused_parameter
from smddp.script_syntax.config_class import InvalidClassError, UnknownValue, config_class
from smddp.script_syntax.modules import PACKAGE, Modules, PythonModule

_RUN = f"{PACKAGE}.run"
_JOB = f"{PACKAGE}.Job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a script can't read its hyperparameters."""

    parameter: Literal["entry_point", "hyperparameters"]
    """What is wrong: the script, or the hyperparameters that it gets."""
    found: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValues:
    """What a script reads from the hyperparameters of its run, as far as its syntax decides it."""

    parameter: str | None = None
    """The name of main's parameter that gets them, or None if it is unknown."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values that the script gets, by the name of the dataclass's field; without those that are unknown."""
    fault: Fault | None = None
    """Why the script can't read them, or None."""

    @classmethod
    def of(cls, modules: Modules, *, in_parts: Iterable[str], read: Callable[[type], Any]) -> ConfigValues:
        """Fill the script's dataclass by ``read``, the reader that the script's run will use.

        ``in_parts`` are the fields that the hyperparameters fill by dotted names or by several words: one of unknown
        type is not judged. ``read`` raises HyperparameterError if the hyperparameters do not fit.
        """
        found = _configuration(modules)
        if found is None:
            return cls()
        module, main, parameter = found
        name, annotation = parameter.arg, parameter.annotation
        if annotation is None or _is_plain_class(modules, module, annotation):
            kind = "None" if annotation is None else f"{ast.unparse(annotation)}, which has no @dataclass"
            return cls(parameter=name, fault=_fault_of_script(refused_parameter(main.name, name, kind), "script"))
        try:
            config = config_class(modules, module, annotation)
        except InvalidClassError as fault:
            return cls(parameter=name, fault=_fault_of_script(str(fault), "dataclass of the script"))
        if config is None or any(name.replace("-", "_") in config.unread for name in in_parts):
            return cls(parameter=name)
        try:
            filled = read(config.made)
        except HyperparameterError as refusal:
            remedy = "Correct the hyperparameters, or the dataclass of the script."
            refused = Fault(parameter="hyperparameters", found=str(refusal).rstrip("."), remedy=remedy)
            return cls(parameter=name, fault=refused)
        known = [each.name for each in fields(filled) if each.name not in config.unread]
        values = {each: value for each in known if not isinstance(value := getattr(filled, each), UnknownValue)}
        return cls(parameter=name, values=values)


def run_main(modules: Modules) -> tuple[PythonModule, ast.FunctionDef] | None:
    """Return the function that the script passes to ``smddp.run``; None unless there is one, known by its name."""
    script = modules.script
    mains = [call.args[0] for call in script.calls if script.full_name(call.func) == _RUN and call.args]
    if len(mains) != 1 or not isinstance(mains[0], ast.Name | ast.Attribute):
        return None
    found = modules.definition(script, mains[0])
    if found is None or not isinstance(found[1], ast.FunctionDef) or found[1].decorator_list:
        return None
    return found[0], found[1]


def _configuration(modules: Modules) -> tuple[PythonModule, ast.FunctionDef, ast.arg] | None:
    """Return main with its module, and its only parameter besides the job."""
    found = run_main(modules)
    if found is None:
        return None
    module, main = found
    given = main.args
    parameters = [each for each in (*given.posonlyargs, *given.args, *given.kwonlyargs) if not _takes_job(module, each)]
    if len(parameters) != 1 or given.vararg or given.kwarg:
        return None
    return module, main, parameters[0]


def _takes_job(module: PythonModule, parameter: ast.arg) -> bool:
    annotation = parameter.annotation
    return parameter.arg == "job" or (annotation is not None and module.full_name(annotation) == _JOB)


def _is_plain_class(modules: Modules, module: PythonModule, annotation: ast.expr) -> bool:
    """Return whether an annotation names a class that is certainly no dataclass."""
    match modules.definition(module, annotation):
        case (_, ast.ClassDef(bases=[], keywords=[], decorator_list=[])):
            return True
    return False


def _fault_of_script(found: str, part: str) -> Fault:
    return Fault(parameter="entry_point", found=found, remedy=f"Correct the {part}.")
