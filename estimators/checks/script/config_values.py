"""The hyperparameters of a job as its script reads them: by the dataclass of ``smddp.run(main)``."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from estimators.checks.script.config_class import ConfigClass, InvalidClassError, UnknownValue, config_class
from estimators.errors import Problem, error
from estimators.source_code import PACKAGE, Modules, PythonModule
from smddp.errors import HyperparameterError
from smddp.job import hyperparameters
from smddp.job.main_arguments import refused_parameter

_RUN = f"{PACKAGE}.run"
_JOB = f"{PACKAGE}.Job"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValues:
    """What a script reads from the hyperparameters of its job, as far as its syntax decides it."""

    parameter: str | None = None
    """The name of main's parameter that gets them, or None if it is unknown."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values that the script gets, by the name of the dataclass's field; without those that are unknown."""
    problem: Problem | None = None
    """Why the script can't read them, or None."""

    @classmethod
    def of(cls, modules: Modules, texts: Mapping[str, str]) -> ConfigValues:
        """Read a job's hyperparameters, each a text as in the request, by the rules of the job's own reader."""
        found = _configuration(modules)
        if found is None:
            return cls()
        module, main, parameter = found
        name, annotation = parameter.arg, parameter.annotation
        if annotation is None or _is_plain_class(modules, module, annotation):
            kind = "None" if annotation is None else f"{ast.unparse(annotation)}, which has no @dataclass"
            refused = error("entry_point", refused_parameter(main.name, name, kind), "Correct the script.")
            return cls(parameter=name, problem=refused)
        try:
            config = config_class(modules, module, annotation)
        except InvalidClassError as fault:
            return cls(parameter=name, problem=error("entry_point", str(fault), "Correct the dataclass of the script."))
        if config is None or _is_within_unread(config, texts):
            return cls(parameter=name)
        try:
            read: Any = hyperparameters.decode(config.made, texts)
        except HyperparameterError as fault:
            remedy = "Correct the hyperparameters, or the dataclass of the script."
            return cls(parameter=name, problem=error("hyperparameters", str(fault).rstrip("."), remedy))
        names = [each.name for each in fields(read) if each.name not in config.unread]
        values = {each: value for each in names if not isinstance(value := getattr(read, each), UnknownValue)}
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


def _is_within_unread(config: ConfigClass, texts: Mapping[str, str]) -> bool:
    """Return whether a hyperparameter names a field inside one whose type is unknown."""
    heads = (name.partition(".")[0].replace("-", "_") for name in texts if "." in name)
    return not config.unread.isdisjoint(heads)
