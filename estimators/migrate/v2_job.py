"""A job of V2: ``sagemaker.pytorch.PyTorch``, or ``sagemaker.estimator.Estimator`` that starts a script.

The Estimator takes the same parameters. Three things change: how they are passed, two defaults, and the attributes
after ``fit``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import libcst as cst

from estimators.errors import nearest
from estimators.estimator import INSTEAD
from estimators.migrate import parameter_names as names
from estimators.migrate.call_layout import items, laid_out, renamed, without
from estimators.migrate.job import ScriptJob
from estimators.migrate.script import Script, Variable, within

_ON_BY_DEFAULT = {
    "debugger_hook_config=True": {"debugger_hook_config", "rules"},
    "disable_profiler=False": {"disable_profiler", "rules", "profiler_config"},
}
"""Arguments that keep features which the SDK turns on by default, and parameters that already decide about them."""
_UNSEEN = "**"
"""Stands for the unknown keys of a dict."""
_THERE = (
    "fit(), plan() and to_sagemaker(), and neither model_data nor deploy(): the TrainingJob that fit() returns has."
)
_HARMLESS = (cst.Expr, cst.Del, cst.Comparison, cst.If, cst.Assert, cst.FormattedStringExpression)
"""Nodes that may contain an estimator's name without passing the estimator on."""
SEND_ON = "Give what takes it estimator.to_sagemaker(), which is the SDK's own object."


@dataclass(frozen=True, slots=True, kw_only=True)
class V2Jobs:
    """Makes jobs of the calls in a script."""

    script: Script
    local_name: str
    """Name of the Estimator in the migrated script."""
    known: Set[str]
    """The names of the Estimator's parameters."""
    job_names: dict[Variable, str] = field(default_factory=dict)
    """Names of an estimator's jobs in the migrated script."""

    def job(self, call: cst.Call, class_name: str) -> ScriptJob:
        """Return the job of a call of ``PyTorch`` or of the generic ``Estimator``."""
        job = ScriptJob(script=self.script, call=call, local_name=self.local_name)
        job.name_estimator(call.func)
        given = self._arguments(job, class_name)
        if class_name == "Estimator":
            _check_generic(job, given)
        _check_versions(job, given)
        chosen = {name for name, value in given.items() if self.script.written(value) is not None}
        left_on = [each for each, unless in _ON_BY_DEFAULT.items() if not unless & chosen]
        if left_on:
            found = f"the SDK's {class_name} turns Debugger's hook or profiler on, the Estimator does not"
            job.tell(call, found, f"For a job as before give {', '.join(left_on)}.")
        self._look_at_uses(job)
        return job

    def _arguments(self, job: ScriptJob, class_name: str) -> dict[str, cst.BaseExpression | None]:
        """Rename the call's arguments to the Estimator's, and return their values; None for an unpacked dict's keys."""
        given: dict[str, cst.BaseExpression | None] = {}
        new_names: list[str | None] = []
        positions = iter(names.POSITIONS[class_name])
        for arg in job.call.args:
            name = arg.keyword.value if arg.keyword else next(positions, None)
            new_names.append("")
            if arg.star == "**":
                given |= dict.fromkeys(self._unpacked(job, arg))
            elif arg.star or name is None:
                found = f"{self.script.text(arg.value)} is an argument by position whose name is not to be seen"
                job.block(arg, found, "Give it by name.")
            elif ignored := self._ignored(class_name, name):
                if _does_something(arg.value):
                    job.block(arg, ignored[0], "What stands there does something, too: do it before the call.")
                job.tell(arg, *ignored)
                new_names[-1] = None
            else:
                new = names.V1_NAMES.get(name, name)
                if new in given:
                    found = f"{new} is given twice, once by its name of V1, of which the SDK takes that of V1"
                    job.block(arg, found, "Leave the other one out.")
                if new != name:
                    job.tell(arg, f"{name} of V1 is {new}", _why_renamed(name))
                given[new] = arg.value
                new_names[-1] = "" if arg.keyword is None and new == "entry_point" else new
        if any(
            name is None or (name and not _is_named(arg, name))
            for arg, name in zip(job.call.args, new_names, strict=True)
        ):
            job.edit(job.call, lambda updated: _rewritten(updated, new_names))
        return given

    def _ignored(self, class_name: str, name: str) -> tuple[str, str] | None:
        """Return the note on a parameter that the SDK's class silently ignores; None if the class uses it."""
        new = names.V1_NAMES.get(name, name)
        if new not in self.known:
            return f"{class_name} ignores {name}: it is no parameter", f"It is left out. {nearest(name, self.known)}"
        if class_name == "Estimator" and new in names.PYTORCH_ALONE:
            found = f"the generic Estimator ignores {name}, which is a parameter of PyTorch"
            return found, "It is left out: give it to the Estimator if it was meant."
        return None

    def _unpacked(self, job: ScriptJob, arg: cst.Arg) -> set[str]:
        """Return the keys of a dict after ``**``; note that they are unknown, or block the job if one is wrong."""
        keys = _keys(self.script, arg.value)
        text = self.script.text(arg.value)
        if keys is None:
            remedy = "Estimator refuses a name that it does not know, where PyTorch ignores it."
            found = f"**{text} stays as it is: its keys are not written out in this script"
            job.tell(arg, found, f"See that they are its parameters. {remedy}", is_open=True)
            return {_UNSEEN}
        for key in sorted(keys - self.known):
            new = names.V1_NAMES.get(key)
            remedy = f"Call it {new} there." if new else f"Remove it there. {nearest(key, self.known)}"
            job.block(arg, f"**{text} has {key!r}, which is no parameter of the Estimator", remedy)
        return keys

    def _look_at_uses(self, job: ScriptJob) -> None:
        variable = self.script.assigned_to(job.call)
        if variable is not None:
            job.variables.add(variable)
            self._look_at_variable(job, variable)
        of_the_job: list[tuple[cst.Attribute, str]] = []
        for use in (job.call,) if variable is None else variable.uses:
            of_the_job += self._look_at(job, use)
        if of_the_job:
            self._name_job(job, variable, of_the_job)

    def _look_at_variable(self, job: ScriptJob, variable: Variable) -> None:
        """Check the other values of the variable, and other places where the estimator may be used."""
        if not all(self._is_estimator_or_none(bound) for bound in variable.bindings):
            found = f"{variable.name} is not always an estimator that is made here"
            job.block(job.call, found, "Give it a variable of its own.")
        elsewhere = list(self._used_elsewhere(job, variable))
        for node in elsewhere:
            found = f"{self.script.text(node)} may be the estimator of line {self.script.line(job.call)}"
            job.tell(node, found, f"There it has {_THERE}", is_open=True)
        if variable.name in self.script.exported():
            found = f"{variable.name} is in __all__"
            job.tell(job.call, found, f"Whoever imports it has {_THERE}", is_open=True)
        if not variable.uses and not elsewhere:
            found = f"{variable.name} is not used in this script"
            job.tell(job.call, found, f"Whoever imports it has {_THERE}", is_open=True)

    def _used_elsewhere(self, job: ScriptJob, variable: Variable) -> Iterator[cst.Attribute]:
        """Yield attributes of unknown objects that may be the estimator, if the estimator is an attribute."""
        owner, _, name = variable.name.rpartition(".")
        if owner or self.script.is_of_class(job.call):
            for node in self.script.nodes(cst.Attribute):
                if node.attr.value == name and not self.script.attribute(node).bindings:
                    yield node

    def _is_estimator_or_none(self, bound: cst.BaseExpression | None) -> bool:
        if isinstance(bound, cst.Call):
            return self.script.imported_name(bound.func) in names.PYTORCH | names.GENERIC
        return isinstance(bound, cst.Name) and bound.value == "None"

    def _look_at(self, job: ScriptJob, use: cst.CSTNode) -> Iterator[tuple[cst.Attribute, str]]:
        """Check a use of the estimator; yield an attribute that the TrainingJob has, with its name there."""
        parent = self.script.parent(use)
        if isinstance(parent, cst.Attribute) and parent.value is use:
            outer = self.script.parent(parent)
            longer = f"{parent.attr.value}.{outer.attr.value}" if isinstance(outer, cst.Attribute) else ""
            if parent.attr.value == "fit":
                self._look_at_fit(job, outer)
            elif longer in names.OF_THE_JOB:
                assert isinstance(outer, cst.Attribute)
                yield outer, names.OF_THE_JOB[longer]
            elif parent.attr.value in names.OF_THE_JOB:
                yield parent, names.OF_THE_JOB[parent.attr.value]
            else:
                _block_attribute(job, parent)
        elif isinstance(parent, cst.Arg):
            call = self.script.parent(parent)
            callee = self.script.imported_name(call.func) if isinstance(call, cst.Call) else None
            if callee is not None and callee.startswith("sagemaker."):
                job.edit(use, lambda updated: cst.Call(cst.Attribute(updated, cst.Name("to_sagemaker"))))
                job.tell(use, f"{callee} takes the SDK's own object", "It gets to_sagemaker().")
            else:
                self._tell_passed_on(job, use)
        elif not isinstance(parent, _HARMLESS):
            self._tell_passed_on(job, use)

    def _look_at_fit(self, job: ScriptJob, call: cst.CSTNode) -> None:
        if not isinstance(self.script.parent(call), cst.Expr):
            found = (
                "what fit() returns is used: with a pipeline's session it is a step, and the Estimator's trains at once"
            )
            job.block(call, found, SEND_ON)

    def _tell_passed_on(self, job: ScriptJob, use: cst.CSTNode) -> None:
        found = "the estimator is passed to code that this does not follow"
        job.tell(use, found, f"There it has {_THERE}", is_open=True)

    def _name_job(self, job: ScriptJob, variable: Variable | None, uses: list[tuple[cst.Attribute, str]]) -> None:
        """Assign the result of ``fit`` to a variable, and read the job's attributes from that variable."""
        of_fit = [use for use in variable.uses if _is_fit(self.script, use)] if variable else []
        fits = [self._fit_statement(use) for use in of_fit]
        scopes = {self.script.scope(each) for each in (*of_fit, *(use for use, _ in uses))}
        if variable is None or not fits or None in fits or len(scopes) > 1:
            for use, _ in uses:
                found = f"{self.script.text(use)}: the TrainingJob that fit() returns has it, the Estimator does not"
                job.block(use, found, "Write job = estimator.fit(…) where it is asked for, and ask the job.")
            return
        name = self.job_names.setdefault(variable, self._free_name())
        for fit in fits:
            assert fit is not None
            job.edit(fit, lambda updated: cst.Assign([cst.AssignTarget(cst.Name(name))], updated.value))
        for use, attribute in uses:
            if not any(self.script.precedes(fit, use) for fit in fits if fit is not None):
                found = f"{self.script.text(use)}: fit() may not have come before it, or not to its end"
                job.tell(use, found, f"Then there is no {name}: ask it where fit() has returned it.", is_open=True)
            found = f"{name} is there if the job was Completed: for a stopped one, by max_run too, fit() raises"
            job.tell(use, found, "Catch TrainingJobStopped of estimators.errors where PyTorch's fit() went on.")
            asked = cst.Attribute(cst.Name(name), cst.Name(attribute))
            job.edit(use, lambda _, asked=asked: asked)  # type: ignore[misc]

    def _free_name(self) -> str:
        """Return a new name for a job's variable."""
        taken = {*self.script.names(), *self.job_names.values()}
        numbered = (f"job_{number}" for number in count(2))
        return next(name for name in chain(("job", "training_job"), numbered) if name not in taken)

    def _fit_statement(self, use: cst.CSTNode) -> cst.Expr | None:
        statement = self.script.parent(self.script.parent(self.script.parent(use)))
        return statement if isinstance(statement, cst.Expr) else None


def _check_generic(job: ScriptJob, given: Mapping[str, cst.BaseExpression | None]) -> None:
    if not {"entry_point", _UNSEEN} & given.keys():
        job.block(
            job.call,
            "sagemaker.estimator.Estimator without an entry_point runs what is in its image, and no script",
            "smddp trains scripts: leave it, or give entry_point and source_dir.",
        )
    elif "hyperparameters" in given:
        job.tell(
            given["hyperparameters"] or job.call,
            "the generic Estimator sends hyperparameters as str() makes them, this one as JSON, as PyTorch does",
            "AWS's training toolkit and smddp read both; an image of your own must read JSON.",
        )


def _check_versions(job: ScriptJob, given: Mapping[str, cst.BaseExpression | None]) -> None:
    """Note a literal version for which the installed SDK has no image."""
    wanted = ("framework_version", "py_version")
    if "image_uri" in given or not given.keys() >= set(wanted):
        return
    values = {name: job.script.written(given[name]) for name in wanted}
    instance_type = job.script.written(given.get("instance_type"))
    if not all(isinstance(value, str) for value in values.values()) or str(instance_type).startswith("local"):
        return
    from estimators.sdk import training_images

    kind = instance_type if isinstance(instance_type, str) else "ml.m5.xlarge"
    asked = training_images.Framework.of({**values, "instance_type": kind}, "us-east-1")
    if refusal := training_images.refusal(asked):
        remedy = "Give versions that it has, leave both out for the newest, or give an image_uri."
        job.tell(
            given[wanted[0]] or job.call, f"the installed SDK refuses the versions: {refusal}", remedy, is_open=True
        )


def _block_attribute(job: ScriptJob, attribute: cst.Attribute) -> None:
    name = attribute.attr.value
    remedy = INSTEAD.get(name, "Use the TrainingJob that fit() returns, or to_sagemaker().")
    job.block(attribute, f"{job.script.text(attribute)}: the Estimator has no {name}", remedy)


def _why_renamed(name: str) -> str:
    return "V2 ignores the old name." if name == "distributions" else "V2 takes the old name with a warning."


def _is_named(arg: cst.Arg, name: str) -> bool:
    return arg.keyword is not None and arg.keyword.value == name


def _is_fit(script: Script, use: cst.CSTNode) -> bool:
    parent = script.parent(use)
    return isinstance(parent, cst.Attribute) and parent.attr.value == "fit"


def _rewritten(call: cst.Call, new_names: list[str | None]) -> cst.Call:
    """Return a call with its arguments renamed; None removes an argument, and "" keeps its name."""
    if not any(name is None or (name and arg.keyword is None) for arg, name in zip(call.args, new_names, strict=True)):
        args = [renamed(arg, name) if name else arg for arg, name in zip(call.args, new_names, strict=True)]
        return call.with_changes(args=args)
    by_arg = dict(zip(call.args, new_names, strict=True))
    kept, closing = without(*items(call), lambda item: by_arg[item.arg] is None)
    result = [replace(item, arg=renamed(item.arg, name) if (name := by_arg[item.arg]) else item.arg) for item in kept]
    return laid_out(call, result, closing)


_READERS = frozenset({"dict", "len", "list", "print", "repr", "set", "sorted", "str"})
"""Functions that do not change a dict."""


def _does_something(value: cst.BaseExpression) -> bool:
    """Return whether an expression may have a side effect."""
    doing = cst.Call | cst.NamedExpr | cst.Await | cst.Yield
    return any(isinstance(node, doing) for node in within(value))


def _is_read(script: Script, use: cst.CSTNode) -> bool:
    """Return whether a dict is only read at a place: unpacked, passed to a reader, or asked for a value."""
    parent = script.parent(use)
    if isinstance(parent, cst.Arg):
        call = script.parent(parent)
        callee = call.func if isinstance(call, cst.Call) else None
        is_reader = isinstance(callee, cst.Name) and callee.value in _READERS and script.variable(callee) is None
        return parent.star == "**" or is_reader
    written = cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.Del
    is_item = isinstance(parent, cst.Subscript) and parent.value is use
    return is_item and not isinstance(script.parent(parent), written)


def _keys(script: Script, value: cst.BaseExpression) -> set[str] | None:
    """Return the keys of a dict that is a literal, here or in the variable; None if they are unknown."""
    if isinstance(value, cst.Name):
        variable = script.variable(value)
        bound = variable.bindings if variable else ()
        found = [None if each is None or isinstance(each, cst.Name) else _keys(script, each) for each in bound]
        uses = variable.uses if variable else ()
        if not found or None in found or not all(_is_read(script, use) for use in uses):
            return None
        return {key for keys in found if keys for key in keys}
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Name) and value.func.value == "dict":
        keywords = [arg.keyword for arg in value.args]
        return {each.value for each in keywords if each} if all(keywords) else None
    if isinstance(value, cst.Dict):
        keys: set[Any] = set()
        for each in value.elements:
            keys.add(script.written(each.key) if isinstance(each, cst.DictElement) else ...)
        return keys if all(isinstance(key, str) for key in keys) else None
    return None
