"""The migration of a submit script: its jobs become an Estimator's, all else stays, and notes name the differences."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from estimators.errors import EstimatorError
from estimators.migrate import parameter_names as names
from estimators.migrate.imports import Imports
from estimators.migrate.job import Note, ScriptJob
from estimators.migrate.script import Edit, Script, within
from estimators.migrate.v2_job import SEND_ON, V2Jobs
from estimators.migrate.v3_job import V3Jobs
from estimators.sdk.adapter import adapter

_ESTIMATOR = frozenset({"estimators.Estimator", "estimators.estimator.Estimator"})
_OTHER_NAME = "SmddpEstimator"
_RAISED_BY_SDK = frozenset(
    {
        "sagemaker.exceptions.CapacityError",
        "sagemaker.exceptions.UnexpectedStatusException",
        "sagemaker.core.utils.exceptions.FailedStatusError",
    }
)
"""Exceptions of V2 and V3 for a failed job."""
_OF_SDK = ("sagemaker.estimator.", "sagemaker.pytorch.", "sagemaker.train.")
"""Prefixes of the full names of classes that are migrated, and of their neighbours."""
_MODULES = frozenset({"sagemaker.estimator", "sagemaker.pytorch", "sagemaker.train"})
_OWN_NAMES = frozenset({"Estimator", "remote", "errors", "local", "training_job"})
_BY_TEXT = frozenset({"eval", "exec", "globals", "locals", "vars"})
_PIPELINE_SESSIONS = frozenset({"LocalPipelineSession", "PipelineSession"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The result of a script's migration."""

    source: bytes
    """The migrated script; unchanged if nothing could be migrated."""
    proposed: bytes
    """The migrated script with all that can be changed of the jobs that stay, too."""
    migrated: int
    """Number of migrated jobs."""
    notes: tuple[Note, ...]
    """In the order of their lines."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        return not any(note.is_open for note in self.notes)


def migrate(source: bytes) -> Migration:
    """Return a submit script with its ``PyTorch`` and ``ModelTrainer`` jobs as an Estimator's.

    A job is migrated as a whole, or stays, and a note says why; jobs of an Estimator stay as they are. Raise
    EstimatorError if the script is not Python, is nested too deeply or describes no job, or if no SageMaker SDK is
    installed.
    """
    try:
        return _migrated(source)
    except RecursionError as fault:
        raise EstimatorError(
            "its expressions are nested too deeply to be read. Write them in several steps."
        ) from fault


def _migrated(source: bytes) -> Migration:
    script = Script(source)
    calls = {call: script.imported_name(call.func) or "" for call in script.nodes(cst.Call)}
    if not any(_CLASSES & {name, name.rpartition(".")[0]} for name in calls.values()) and not any(_subclasses(script)):
        if any(name in _ESTIMATOR for name in calls.values()):
            return Migration(source=source, proposed=source, migrated=0, notes=tuple(sorted(_left_beside(script))))
        raise EstimatorError(
            "no call of sagemaker.pytorch.PyTorch, sagemaker.estimator.Estimator or sagemaker.train.ModelTrainer was "
            f"found{script.star_import()}. Give the script that describes the job."
        )
    bound = {full_name: name for name, full_name in script.imported().items()}
    there = next((bound[name] for name in _ESTIMATOR if name in bound), None)
    for local_name in (there or "Estimator", _OTHER_NAME):
        jobs = _jobs(script, calls, local_name)
        kept = _whole(jobs)
        _annotate(script, calls, jobs, kept)
        imports = Imports(script, kept, _needed(kept, local_name, bound))
        if there or not _is_taken(script, local_name, kept, imports):
            break
    migrated = _edited(script, kept, imports)
    proposed = (
        migrated if kept == jobs else _edited(script, jobs, Imports(script, jobs, _needed(jobs, local_name, bound)))
    )
    notes = [note for job in kept for note in job.notes]
    notes += [note for job in jobs if job not in kept for note in (*job.blockers, *job.notes) if note.is_open]
    notes += _left(script, calls, kept)
    return Migration(source=migrated, proposed=proposed, migrated=len(kept), notes=tuple(sorted(set(notes))))


def _edited(script: Script, jobs: Sequence[ScriptJob], imports: Imports) -> bytes:
    return script.edited(_merged([*(job.edits for job in jobs), imports.edits()]) if jobs else {})


_CLASSES = names.PYTORCH | names.GENERIC | names.MODEL_TRAINER


def _jobs(script: Script, calls: dict[cst.Call, str], local_name: str) -> list[ScriptJob]:
    v2 = V2Jobs(script=script, local_name=local_name, known=adapter().parameter_names())
    v3 = V3Jobs(script=script, local_name=local_name)
    jobs = []
    for call, name in calls.items():
        if name in names.PYTORCH | names.GENERIC:
            jobs.append(v2.job(call, name.rpartition(".")[2]))
        elif name in names.MODEL_TRAINER:
            jobs.append(v3.job(call))
    for session in sorted(_PIPELINE_SESSIONS & script.names()):
        for job in jobs:
            found = f"the script has a {session}, with which a job is a step, and the Estimator's trains at once"
            job.block(job.call, found, SEND_ON)
    return jobs


def _whole(jobs: Sequence[ScriptJob]) -> list[ScriptJob]:
    """Return the jobs that can be migrated; a job that shares a variable with a job that stays, stays, too."""
    kept = list(jobs)
    for job in jobs:
        if not job.blockers:
            _block_by_other_uses(job, jobs)
    while any(job.blockers for job in kept):
        left = [job for job in jobs if job.blockers]
        kept = [job for job in kept if not job.blockers]
        for job in kept:
            for other in left:
                if shared := ", ".join(sorted(variable.name for variable in job.variables & other.variables)):
                    line = job.script.line(other.call)
                    job.block(job.call, f"it shares {shared} with the job of line {line}", "Migrate that first.")
    return kept


def _block_by_other_uses(job: ScriptJob, kept: Sequence[ScriptJob]) -> None:
    """Block a job if a variable with its configuration is used outside the migrated jobs, too."""
    replaced = {node for other in kept for node in other.replaced}
    for variable in job.variables - {job.script.assigned_to(job.call)}:
        for use in variable.uses:
            if use not in replaced:
                found = f"{variable.name} is used in line {job.script.line(use)}, too, where it stays V3's"
                job.block(job.call, found, "Give the job a configuration of its own.")


def _annotate(
    script: Script, calls: Mapping[cst.Call, str], jobs: Sequence[ScriptJob], kept: Sequence[ScriptJob]
) -> None:
    """Name the Estimator in annotations with the SDK's class, if all jobs of that class are migrated."""
    for node in _in_annotations(script):
        of_class = [job for job in jobs if calls[job.call] == script.imported_name(node)]
        is_whole = isinstance(node, cst.Name | cst.Attribute) and not isinstance(script.parent(node), cst.Attribute)
        if is_whole and of_class and set(of_class) <= set(kept):
            of_class[0].name_estimator(node)


def _in_annotations(script: Script) -> set[cst.CSTNode]:
    return {node for annotation in script.nodes(cst.Annotation) for node in within(annotation)}


def _needed(jobs: Sequence[ScriptJob], local_name: str, bound: dict[str, str]) -> list[str]:
    """Return the import statements that migrated jobs need."""
    alias = "" if local_name == "Estimator" else f" as {local_name}"
    needed = [] if _ESTIMATOR & bound.keys() else [f"from estimators import Estimator{alias}"]
    inputs = {name for job in jobs for name in job.inputs if bound.get(f"sagemaker.core.inputs.{name}") != name}
    return needed + ([f"from sagemaker.core.inputs import {', '.join(sorted(inputs))}"] if inputs else [])


def _is_taken(script: Script, name: str, jobs: Sequence[ScriptJob], imports: Imports) -> bool:
    """Return whether a name still has another meaning in the migrated script."""
    replaced = {node for job in jobs for node in job.replaced}
    for node in script.nodes(cst.Name):
        parent = script.parent(node)
        is_attribute = isinstance(parent, cst.Attribute) and parent.attr is node
        is_keyword = isinstance(parent, cst.Arg) and parent.keyword is node
        is_import = isinstance(parent, cst.ImportAlias) and name in imports.removed_names()
        if node.value == name and node not in replaced and not (is_attribute or is_keyword or is_import):
            return True
    return keyword.iskeyword(name)


def _merged(edits: Sequence[dict[cst.CSTNode, Edit]]) -> dict[cst.CSTNode, Edit]:
    """Return the edits of several jobs as one; jobs that share a node edit it alike."""
    return {node: edit for each in edits for node, edit in each.items()}


def _left(script: Script, calls: dict[cst.Call, str], kept: Sequence[ScriptJob]) -> Iterator[Note]:
    """Yield notes on the uses of the SDK's classes that are not jobs."""
    for call, name in calls.items():
        owner, _, method = name.rpartition(".")
        if owner in _CLASSES and not any(isinstance(node, cst.Call) for node in within(call.func)):
            remedy = {
                "attach": "Use estimators.training_job.TrainingJob.attach(name).",
                "from_recipe": "Give PyTorch of V2, and with it the Estimator, training_recipe and recipe_overrides.",
            }.get(method, "Leave it with the SDK, or describe the job by its script.")
            found = f"{owner.rpartition('.')[2]}.{method}(…) is not migrated"
            yield Note(line=script.line(call), is_open=True, found=found, remedy=remedy)
    for definition, base in _subclasses(script):
        found = f"class {definition.name.value} is a kind of {base}, and is not migrated"
        remedy = "Make it a function that returns an Estimator."
        yield Note(line=script.line(definition), is_open=True, found=found, remedy=remedy)
    for use, name in _named(script):
        found = f"{name} is named without being called, and is not migrated"
        yield Note(line=script.line(use), is_open=True, found=found, remedy="Have it name what the Estimator is.")
    if kept:
        yield from _left_beside(script)
        for call in script.nodes(cst.Call):
            if isinstance(call.func, cst.Name) and call.func.value in _BY_TEXT and script.variable(call.func) is None:
                found = f"{call.func.value}() reaches variables in a way that this does not follow"
                remedy = "See that no estimator is among them."
                yield Note(line=script.line(call), is_open=True, found=found, remedy=remedy)


def _left_beside(script: Script) -> Iterator[Note]:
    """Yield notes on code that does not fit the Estimator's jobs beside it."""
    remedy = "Catch TrainingJobFailed of estimators.errors."
    for node in (*script.nodes(cst.Name), *script.nodes(cst.Attribute)):
        name = script.imported_name(node)
        if name in _RAISED_BY_SDK and not isinstance(script.parent(node), cst.ImportAlias | cst.AsName | cst.Attribute):
            found = f"fit() of the Estimator does not raise {name.rpartition('.')[2]} for a failed job"
            yield Note(line=script.line(node), is_open=True, found=found, remedy=remedy)
    for handler in script.nodes(cst.ExceptHandler):
        caught = {node.value for node in within(handler.type) if isinstance(node, cst.Name)} if handler.type else set()
        if "ValueError" in caught and _calls_fit(script.parent(handler)):
            found = "the SDK raises a kind of ValueError for a failed job, and fit() of the Estimator does not"
            yield Note(line=script.line(handler), is_open=True, found=found, remedy=remedy)
    for statement in script.nodes(cst.ImportFrom):
        if statement.module is None or script.text(statement.module) != "estimators":
            continue
        aliases = () if isinstance(statement.names, cst.ImportStar) else statement.names
        for strange in sorted({alias.evaluated_name for alias in aliases} - _OWN_NAMES):
            found = f"{strange} comes from a module of your own that has the name of smddp's, estimators"
            yield Note(line=script.line(statement), is_open=True, found=found, remedy="Rename your module.")


def _calls_fit(statement: cst.CSTNode) -> bool:
    body = within(statement.body) if isinstance(statement, cst.Try) else ()
    return any(
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in ("fit", "train")
        for node in body
    )


def _named(script: Script) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield each place that names a class of the SDK outside calls, annotations, bases and imports."""
    annotations = _in_annotations(script)
    for node in (*script.nodes(cst.Name), *script.nodes(cst.Attribute)):
        parent = script.parent(node)
        if node in annotations or isinstance(parent, cst.ImportAlias | cst.AsName | cst.Attribute):
            continue
        is_base = isinstance(parent, cst.Arg) and isinstance(script.parent(parent), cst.ClassDef)
        is_called = isinstance(parent, cst.Call) and parent.func is node
        name = script.imported_name(node) or ""
        is_part = isinstance(parent, cst.AssignTarget) and name.startswith(_OF_SDK)  # such as PyTorch.fit = …
        is_module = isinstance(parent, cst.Arg) and name in _MODULES
        if ((name in _CLASSES and not is_called) or is_part or is_module) and not is_base:
            yield node, name
    for text in script.nodes(cst.SimpleString):
        if isinstance(text.evaluated_value, str) and text.evaluated_value.startswith(_OF_SDK):
            yield text, text.evaluated_value


def _subclasses(script: Script) -> Iterator[tuple[cst.ClassDef, str]]:
    for definition in script.nodes(cst.ClassDef):
        for base in definition.bases:
            name = script.imported_name(base.value)
            if name in _CLASSES:
                yield definition, name
