"""The room's door: its operations, under one lock, and how a job's own trial component comes about."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments.collection import Collection
from estimators.local.engine.experiments.components import ComponentOperations
from estimators.local.engine.experiments.entity import AnyEntity, Entity
from estimators.local.engine.experiments.job_component import JobToTrack
from estimators.local.engine.experiments.records import FindJob, Records
from estimators.local.engine.experiments.request_members import Handler
from estimators.local.engine.experiments.trials import TrialOperations
from estimators.local.engine.job_store import JobStore


class Experiments:
    """Experiments, trials and trial components.

    Args:
        arn_prefix: What the ARNs of the platform's account and region begin with, up to the colon.
        store: Remembers them, and knows those of earlier platforms.
        find_job: Returns the training or processing job that has an ARN, or None.
    """

    def __init__(self, arn_prefix: str, store: JobStore, find_job: FindJob) -> None:
        # Guards the records. Order: a job's own lock and the store's are taken while it is held, and never the other
        # way round.
        self._lock = threading.Lock()
        self._records = Records(arn_prefix, store, find_job)
        unlocked = {**TrialOperations(self._records).operations, **ComponentOperations(self._records).operations}
        self.operations: Mapping[str, Handler] = {name: self._locked(operation) for name, operation in unlocked.items()}

    def find(self, arn: str) -> Entity | None:
        """Return what has an ARN, or None."""
        with self._lock:
            return self._records.find(arn)

    def search_records(self, resource: str) -> list[dict[str, Any]]:
        """Return what Search looks at: the descriptions of all of a resource's kind, with their tags."""
        with self._lock:
            return self._records.search_records(resource)

    def settle(self, job_arn: str) -> None:
        """Have the component of a job that has ended show what it came to, though the job will be deleted."""
        with self._lock:
            for component in self._records.components.all():
                if component.follows == job_arn:
                    self._records.settle(component)

    @contextlib.contextmanager
    def track(self, job: JobToTrack) -> Iterator[None]:
        """Make a job's trial component for the block that creates the job; if the block raises, there is none.

        A component of the same name stays if it is a job's that is there, and is replaced if its job was deleted.

        Raises:
            ApiError: There is no such experiment or trial, or a user's component has the name.
        """
        if self._records.find_job(job.arn) is not None:  # whose name the block will refuse
            yield
            return
        with contextlib.ExitStack() as undo:
            with self._lock:
                trial = self._trial_of(job)
                if trial is not None and self._records.trials.find(trial.name) is None:
                    self._records.trials.add(trial)
                    undo.callback(self._remove, self._records.trials, trial)
                earlier = self._records.components.find(job.component)
                if earlier is not None and earlier.source != job.arn:
                    earlier = None
                component = self._records.components.make(job.component, job.members(), {}, instead_of=earlier)
                component.follows, component.run = job.arn, job.experiment_config.get("RunName", "")
                component.trials = () if trial is None else (trial.name,)
                self._records.components.add(component)
                undo.callback(self._remove, self._records.components, component, earlier)
            yield
            undo.pop_all()

    def _locked(self, operation: Handler) -> Handler:
        def answer(request: dict[str, Any]) -> dict[str, Any]:
            with self._lock:
                return operation(request)

        return answer

    def _remove(self, collection: Collection[AnyEntity], entity: AnyEntity, earlier: AnyEntity | None = None) -> None:
        """Have all be as it was before an entity came, in place of an earlier one."""
        with self._lock:
            if earlier is not None:
                collection.add(earlier)
            elif collection.find(entity.name) is entity:
                collection.remove(entity)

    def _trial_of(self, job: JobToTrack) -> Entity | None:
        """Return the trial that a request is for, if it is for one: one that there is, or a new one."""
        config = job.experiment_config
        experiment = self._records.experiments.get(config["ExperimentName"]) if "ExperimentName" in config else None
        if "TrialName" in config:
            trial = self._records.trials.get(config["TrialName"])
            of = trial.members["ExperimentName"]
            if experiment is not None and of != experiment.name:
                raise invalid(
                    f"ExperimentConfig: the trial {trial.name} is of the experiment {of}, and not of "
                    f"{experiment.name}; leave ExperimentName out, or name another trial."
                )
            return trial
        if experiment is None:
            return None
        name = f"{job.component}-trial"
        trial_of_name = self._records.trials.find(name)  # of a job of the same name, which was deleted
        if trial_of_name is not None and trial_of_name.members["ExperimentName"] == experiment.name:
            return trial_of_name
        return self._records.trials.make(name, {"ExperimentName": experiment.name}, {})
