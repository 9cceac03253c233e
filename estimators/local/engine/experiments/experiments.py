"""The operations on experiments, under one lock, and the creation of a job's own trial component."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments.job_component import JobToTrack
from estimators.local.engine.experiments.operations import ComponentOperations, TrialOperations
from estimators.local.engine.experiments.record import AnyEntity, EntityRecord
from estimators.local.engine.experiments.records import Entities, EntityRecords, FindJob
from estimators.local.engine.records import RecordStore
from estimators.local.engine.validation import Handler


class Experiments:
    """Experiments, trials and trial components, including entities of earlier platforms in the store."""

    def __init__(self, arn_prefix: str, store: RecordStore, find_job: FindJob) -> None:
        # Guards the records. Taken before the lock of an entity, of a job and of the store, never after one of them.
        self._lock = threading.Lock()
        self._entities = Entities(arn_prefix, store, find_job)
        unlocked = {**TrialOperations(self._entities).operations, **ComponentOperations(self._entities).operations}
        self.operations: Mapping[str, Handler] = {name: self._locked(operation) for name, operation in unlocked.items()}

    def find(self, arn: str) -> EntityRecord | None:
        """Return the experiment, trial or trial component of an ARN, or None."""
        with self._lock:
            return self._entities.find(arn)

    def search_records(self, resource: str) -> list[dict[str, Any]]:
        """Return the descriptions of all entities of a resource, with their tags, for Search."""
        with self._lock:
            return self._entities.search_records(resource)

    def settle(self, job_arn: str) -> None:
        """Copy the final state of an ended job to its component, before the job is deleted."""
        with self._lock:
            for component in self._entities.components.all():
                if component.follows == job_arn:
                    self._entities.settle(component)

    @contextlib.contextmanager
    def track(self, job: JobToTrack) -> Iterator[None]:
        """Add a job's trial component before the block that creates the job; undo that if the block raises.

        Raise ApiError if the experiment or trial is absent, or a user's component has the name.
        """
        # 1. If a job of this name exists, the block refuses the new one, and the component stays as it is.
        # 2. Under the lock: add a new trial if needed, and the component, in place of a deleted job's component.
        # 3. Without the lock: the block creates the job, which takes locks of its own.
        # 4. If the block raises, put the earlier component back or remove the new one, and remove the new trial.
        if self._entities.find_job(job.arn) is not None:
            yield
            return
        with contextlib.ExitStack() as undo:
            with self._lock:
                trial = self._trial_of(job)
                if trial is not None and self._entities.trials.find(trial.name) is None:
                    self._entities.trials.add(trial)
                    undo.callback(self._remove, self._entities.trials, trial)
                earlier = self._entities.components.find(job.component)
                if earlier is not None and earlier.source != job.arn:
                    earlier = None
                component = self._entities.components.make(job.component, job.members(), {})
                component.follows, component.run = job.arn, job.experiment_config.get("RunName", "")
                component.trials = () if trial is None else (trial.name,)
                self._entities.components.add(component, instead_of=earlier)
                undo.callback(self._remove, self._entities.components, component, earlier)
            yield
            undo.pop_all()

    def _locked(self, operation: Handler) -> Handler:
        def answer(request: dict[str, Any]) -> dict[str, Any]:
            with self._lock:
                return operation(request)

        return answer

    def _remove(self, records: EntityRecords[AnyEntity], entity: AnyEntity, earlier: AnyEntity | None = None) -> None:
        """Undo the addition of an entity: put the earlier one back, or remove the entity."""
        with self._lock:
            if earlier is not None:
                records.add(earlier, instead_of=records.find(entity.name))
            else:
                records.remove(entity)

    def _trial_of(self, job: JobToTrack) -> EntityRecord | None:
        """Return the trial of a request's ExperimentConfig, an existing or a new one; None if absent."""
        config = job.experiment_config
        experiment = self._entities.experiments.get(config["ExperimentName"]) if "ExperimentName" in config else None
        if "TrialName" in config:
            trial = self._entities.trials.get(config["TrialName"])
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
        trial_of_name = self._entities.trials.find(name)  # left by a deleted job of the same name
        if trial_of_name is not None and trial_of_name.members["ExperimentName"] == experiment.name:
            return trial_of_name
        return self._entities.trials.make(name, {"ExperimentName": experiment.name}, {})
