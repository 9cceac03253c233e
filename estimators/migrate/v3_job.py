"""A job of V3: ``sagemaker.train.ModelTrainer`` with its configurations, and the ``train`` that sends it.

A configuration becomes parameters of the Estimator: within the call, or, if it is in a variable, as ``dict(…)`` in its
place. All other values stay in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from estimators.migrate import parameter_names as names
from estimators.migrate.call_layout import Item, around, items, keyword, laid_out, renamed, without
from estimators.migrate.job import ScriptJob
from estimators.migrate.script import Script
from estimators.migrate.v3_values import Values

_TRAIN = {"input_data_config": "inputs", "wait": "wait", "logs": "logs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class V3Jobs:
    """Makes jobs of the calls in a script."""

    script: Script
    local_name: str
    """Name of the Estimator in the migrated script."""

    def job(self, call: cst.Call) -> ScriptJob:
        """Return the job of a call of ``ModelTrainer``."""
        job = ScriptJob(script=self.script, call=call, local_name=self.local_name)
        values = Values(job)
        job.name_estimator(call.func)
        given = {arg.keyword.value: arg for arg in call.args if arg.keyword and not _is_none(arg)}
        for arg in call.args:
            if arg.keyword is None:
                text = f"{arg.star}{self.script.text(arg.value)}"
                job.block(arg, f"{text}: its names are not to be seen", "Give ModelTrainer its arguments by name.")
        for name, arg in given.items():
            self._look_at(job, values, name, arg)
        for name in ("source_code", "training_image"):
            if name not in given and not job.blockers:
                remedy = "The Estimator starts a script in an image: give source_code and training_image."
                job.block(call, f"ModelTrainer without {name}", remedy)
        added = [
            keyword(name, cst.parse_expression(value))
            for configuration, defaults in names.DEFAULTS.items()
            if configuration not in given
            for name, value in defaults.items()
        ]
        job.edit(call, lambda updated: _rewritten(updated, added))
        if "role" not in given:
            remedy = "Give role, or name it in the SDK's configuration."
            job.tell(call, "ModelTrainer takes the role that it runs as, the Estimator does not", remedy)
        self._tell_of_defaults(job, given)
        self._look_at_uses(job, values)
        return job

    def _look_at(self, job: ScriptJob, values: Values, name: str, arg: cst.Arg) -> None:
        if name in names.CONFIGURATIONS:
            values.configuration(name, arg.value)
        elif name == "distributed":
            values.distribution(arg.value)
        elif name == "tags":
            values.tags(arg.value)
        elif name == "training_mode" and self.script.text(arg.value).endswith("SAGEMAKER_TRAINING_JOB"):
            job.replace(arg.value)
        elif name == "hyperparameters" and isinstance(self.script.written(arg.value), str):
            job.block(arg, "hyperparameters is the path of a file", "Read the file, and give the dict.")
        elif name not in names.TRAINER_PARAMETERS:
            remedy = names.NO_PLACE.get(name, "Remove it, if the job can do without.")
            job.block(arg, f"the Estimator has no {name}", remedy)

    def _tell_of_defaults(self, job: ScriptJob, given: Mapping[str, cst.Arg]) -> None:
        job.tell(
            job.call,
            "ModelTrainer brings its own launcher into any image, the Estimator leaves the start to the image's",
            "Use an AWS Deep Learning Container for PyTorch, or an image of smddp image build.",
        )
        job.tell(
            given.get("source_code", job.call),
            "ModelTrainer installs the requirements that it is told of, AWS's training toolkit those of a "
            "requirements.txt in source_dir; and what is not uploaded differs",
            "Look at the list in the log, and name in .smddpignore what is to stay here.",
        )
        if "hyperparameters" in given and self._may_hold_switches(given["hyperparameters"].value):
            remedy = "Or let the script take them by smddp.run, which knows their types."
            found = "a script reads True on its command line, where ModelTrainer's launcher writes true"
            job.tell(given["hyperparameters"], found, remedy)
        if "output_data_config" not in given:
            found = "ModelTrainer puts the model under base_job_name in the session's bucket, the Estimator does not"
            job.tell(job.call, found, "Give output_path for a place of your own.")
        mode = given.get("training_input_mode")
        if mode is not None and self.script.written(mode.value) != "File":
            found = "ModelTrainer reads a channel that is a URI in File mode, whatever training_input_mode says"
            job.tell(mode, found, 'As before: TrainingInput(uri, input_mode="File").')

    def _may_hold_switches(self, value: cst.BaseExpression) -> bool:
        written = self.script.written(value)
        return not isinstance(written, dict) or any(isinstance(each, bool) for each in written.values())

    def _look_at_uses(self, job: ScriptJob, values: Values) -> None:
        variable = self.script.assigned_to(job.call)
        if variable is not None:
            job.variables.add(variable)
            if any(bound is None or not self._is_trainer(bound) for bound in variable.bindings):
                found = f"{variable.name} is not always a ModelTrainer that is made here"
                job.block(job.call, found, "Give it a variable of its own.")
        uses: Sequence[cst.CSTNode] = (job.call,) if variable is None else variable.uses
        for use in uses:
            attribute = self.script.parent(use)
            train = self.script.parent(attribute)
            is_call = isinstance(train, cst.Call) and train.func is attribute
            if isinstance(attribute, cst.Attribute) and attribute.value is use:
                if is_call and attribute.attr.value == "train":
                    assert isinstance(train, cst.Call)
                    self._look_at_train(job, values, attribute, train)
                else:
                    self._block_use(job, attribute, attribute.attr.value)
            elif not isinstance(attribute, cst.Expr):
                found = "the ModelTrainer is passed to code that this does not follow"
                job.block(use, found, "Keep it in a variable, and call train() on that.")

    def _is_trainer(self, bound: cst.BaseExpression) -> bool:
        return isinstance(bound, cst.Call) and self.script.imported_name(bound.func) in names.MODEL_TRAINER

    def _block_use(self, job: ScriptJob, attribute: cst.Attribute, name: str) -> None:
        parameter = {
            "with_retry_strategy": "max_retry_attempts",
            "with_metric_definitions": "metric_definitions",
            "with_checkpoint_config": "checkpoint_s3_uri",
            "with_infra_check_config": "enable_infra_check",
            "with_remote_debug_config": "enable_remote_debug",
            "with_session_chaining_config": "enable_session_tag_chaining",
            "with_tensorboard_output_config": "tensorboard_output_config",
        }.get(name)
        remedy = (
            f"Give the Estimator {parameter}."
            if parameter
            else "Use the TrainingJob that the Estimator's fit() returns."
        )
        job.block(attribute, f"the Estimator has no {name}", remedy)

    def _look_at_train(self, job: ScriptJob, values: Values, attribute: cst.Attribute, train: cst.Call) -> None:
        job.edit(attribute, lambda updated: updated.with_changes(attr=cst.Name("fit")))
        new_names: list[str | None] = []
        for name, arg in zip(_TRAIN, train.args, strict=False):
            given = name if arg.keyword is None else arg.keyword.value
            if arg.star or given not in _TRAIN:
                job.block(arg, f"fit() has no {self.script.text(arg).rstrip(', ')}", "Call plan() for a dry run.")
                return
            if given == "input_data_config":
                values.channels(arg.value)
            new_names.append(_TRAIN[given] if arg.keyword else None)
        if len(train.args) > len(new_names):
            job.block(train, "train() with more than it takes in its own SDK's order", "Call plan() for a dry run.")
            return

        def edit(updated: cst.Call) -> cst.Call:
            both = zip(updated.args, new_names, strict=True)
            return updated.with_changes(args=[renamed(arg, name) if name else arg for arg, name in both])

        job.edit(train, edit)


def _rewritten(call: cst.Call, added: Sequence[cst.Arg]) -> cst.Call:
    """Return the Estimator's call in place of ModelTrainer's, with configurations as ``dict(…)`` or in variables."""
    found, closing = without(*items(call), lambda item: _is_left_out(item.arg))
    result: list[Item] = []
    comments: tuple[str, ...] = ()
    for item in found:
        name = item.arg.keyword.value if item.arg.keyword else ""
        value = item.arg.value
        above, comments = (*comments, *item.above), ()
        if name in names.CONFIGURATIONS and isinstance(value, cst.Call):
            inner, end = items(value)
            if inner:
                result += around(inner, above, item.beside)
                comments = end
            else:
                comments = (*above, *end, *item.beside)
        elif name in names.CONFIGURATIONS:
            result.append(Item(cst.Arg(value, star="**"), above, item.beside))
        else:
            result.append(Item(renamed(item.arg, names.TRAINER_PARAMETERS.get(name, name)), above, item.beside))
    return laid_out(call, [*result, *map(Item, added)], (*comments, *closing))


def _is_left_out(arg: cst.Arg) -> bool:
    return _is_none(arg) or (arg.keyword is not None and arg.keyword.value == "training_mode")


def _is_none(arg: cst.Arg) -> bool:
    return isinstance(arg.value, cst.Name) and arg.value.value == "None"
