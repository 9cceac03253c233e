"""The records of jobs, experiments, trials and trial components: one, all of a kind by name, and the tags of any."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from estimators.local.engine.errors import ApiError, invalid, not_found, refuse
from estimators.local.engine.records.store import NOTHING_KEPT, RecordStore, RecordStoreError
from estimators.request_rules import broken_by_tags

_MAX_TAGS = 50


@dataclass(kw_only=True, slots=True, frozen=True)
class RecordKind:
    """A kind of record, and AWS's errors about its names."""

    word: str
    """Its name in messages: ``training job``."""
    resource: str
    """Its name in ARNs."""
    key: str
    """Its name in the store."""

    def key_of(self, name: str) -> str:
        """Return the key of a record's name: two records have the same name if their keys are equal."""
        return name

    def missing(self, name: str, arn: str) -> ApiError:  # noqa: ARG002  # other kinds show the ARN
        """Return the error for an absent record."""
        return not_found(name, self.word)

    def taken(self, name: str, arn: str) -> ApiError:  # noqa: ARG002  # other kinds show the ARN
        """Return the error for a name that another record has."""
        return ApiError(
            "ResourceInUse",
            f"{self.word.capitalize()} names must be unique within an AWS account and region; there is one named "
            f"{name} already.",
        )


class Record(abc.ABC):
    """A record from its creation on; subclasses add the state of their kind."""

    kind: RecordKind

    def __init__(self, name: str, arn: str, tags: Mapping[str, str]) -> None:
        self.name = name
        self.arn = arn
        self.tags = dict(tags)  # replaced at a change, never modified: it is read without the lock
        # Guards all state of the record, including the state of subclasses. Reentrant.
        # 1. A change and its save are one step, so the last save has all changes.
        # 2. Taken after the locks of `Experiments` and `Records`, before the store's.
        self._lock = threading.RLock()
        self._store = NOTHING_KEPT

    def to_json(self) -> dict[str, Any]:
        """Return the document to save, from which another platform can restore the record; times as datetimes."""
        return {"arn": self.arn, "tags": self.tags}

    def _restore(self, document: Mapping[str, Any]) -> None:
        """Restore the state of a record of an earlier platform from its `to_json` document, with times as text."""
        self.tags = dict(document["tags"])

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the description as AWS shows it."""

    def save_in(self, store: RecordStore) -> None:
        """Save the record in a store from the next `note` on."""
        with self._lock:
            self._store = store

    def note(self) -> None:
        """Save the record as it is now. Called after each change."""
        with self._lock:
            self._store.save(self.kind.key, self.kind.key_of(self.name), self.to_json)

    def note_soon(self) -> None:
        """Save the record soon: for changes that come many times a second."""
        self._store.save_soon(self.kind.key, self.kind.key_of(self.name), self.note)

    def forget(self) -> None:
        """Delete the record from its store, and stop saving it."""
        with self._lock:
            self._store.delete(self.kind.key, self.kind.key_of(self.name))
            self._store = NOTHING_KEPT

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Add tags, or replace their values; raise ApiError if the record would have too many."""
        with self._lock:
            together = {**self.tags, **tags}
            if len(together) > _MAX_TAGS:
                raise invalid(f"{self.name} would have {len(together)} tags; {_MAX_TAGS} is the limit.")
            self.tags = together
            self.note()

    def remove_tags(self, keys: Iterable[str]) -> None:
        """Remove the tags of some keys."""
        removed = frozenset(keys)
        with self._lock:
            self.tags = {key: value for key, value in self.tags.items() if key not in removed}
            self.note()

    def describe_tags(self) -> list[dict[str, str]]:
        """Return the tags as AWS shows them."""
        return [{"Key": key, "Value": value} for key, value in self.tags.items()]


class JobRequest(Protocol):
    """The request of a job, of any kind."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def members(self) -> Mapping[str, Any]:
        """The request itself."""

    @property
    def tags(self) -> Mapping[str, str]:
        """The job's first tags."""


JobRequest_co = TypeVar("JobRequest_co", bound=JobRequest, covariant=True)


class JobRecord(Record, Generic[JobRequest_co]):
    """The record of a job, whose work a runner does."""

    def __init__(self, request: JobRequest_co, arn: str) -> None:
        super().__init__(request.name, arn, request.tags)
        self.request = request

    def to_json(self) -> dict[str, Any]:
        """Return the document to save; `_restore` takes all but the request and the ARN."""
        return {"request": self.request.members, **super().to_json()}

    @property
    @abc.abstractmethod
    def ended(self) -> bool:
        """Whether the job has ended and will not change."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop the job, unless it is stopping."""


R = TypeVar("R", bound=Record)
J = TypeVar("J", bound=JobRecord[Any])


class Records(Generic[R]):
    """The records of one kind, including records of earlier platforms in the store."""

    def __init__(
        self,
        kind: RecordKind,
        arn_prefix: str,  # of all ARNs: arn:aws:sagemaker:REGION:ACCOUNT
        store: RecordStore,
        restore: Callable[[Mapping[str, Any]], R],  # makes a record of an earlier platform from its document
    ) -> None:
        self._kind = kind
        self._arn_prefix = arn_prefix
        self._store = store
        # Guards the records, and the fields of subclasses: a name is checked and taken in one step. Reentrant. Taken
        # after the lock of `Experiments`, before the lock of a record and the store's. One entry is read without it.
        # Bound: a save of one record.
        self._lock = threading.RLock()
        self._records = store.load(kind.key, restore)
        for record in self._records.values():
            record.save_in(store)

    def arn(self, name: str) -> str:
        """Return the ARN of a name."""
        return f"{self._arn_prefix}:{self._kind.resource}/{name}"

    def add(self, record: R, *, instead_of: R | None = None) -> None:
        """Save and add a new record.

        Raise ApiError and add nothing if the name is taken by another record than ``instead_of``, or it can't be saved.
        """
        with self._lock:
            if self.find(record.name) is not instead_of:
                raise self._kind.taken(record.name, self.arn(record.name))
            record.save_in(self._store)
            record.note()
            try:
                self._store.require_saved()
            except RecordStoreError:
                record.forget()
                if instead_of is not None:
                    instead_of.note()
                raise
            self._records[self._kind.key_of(record.name)] = record

    def remove(self, record: R) -> None:
        """Delete a record; do nothing if it was deleted meanwhile, though a new one may have its name."""
        with self._lock:
            if self.find(record.name) is record:
                del self._records[self._kind.key_of(record.name)]
                record.forget()

    def all(self) -> list[R]:
        """Return all records."""
        with self._lock:
            return list(self._records.values())

    def find(self, name: str) -> R | None:
        """Return the record of a name, or None."""
        return self._records.get(self._kind.key_of(name))

    def find_arn(self, arn: str) -> R | None:
        """Return the record of an ARN, or None."""
        record = self.find(arn.rpartition("/")[2])
        return record if record is not None and record.arn == arn else None

    def get(self, name: str) -> R:
        """Return the record of a name; raise ApiError if it is absent."""
        record = self.find(name)
        if record is None:
            raise self._kind.missing(name, self.arn(name))
        return record


class Runner(Protocol):
    """The thread that does a job's work."""

    def start(self) -> None:
        """Begin, and return at once."""

    def join(self, timeout: float | None = None) -> None:
        """Wait at most ``timeout`` seconds for the job's end; None: without a limit."""


Run = TypeVar("Run", bound=Runner)


class JobRecords(Records[J], Generic[J, Run]):
    """The jobs of one kind, each with its runner; a job of an earlier platform may have none."""

    def __init__(
        self, kind: RecordKind, arn_prefix: str, store: RecordStore, restore: Callable[[Mapping[str, Any]], J]
    ) -> None:
        super().__init__(kind, arn_prefix, store, restore)
        # Under the lock, a job and its runner are added together, and none after a refusal: to end all jobs, set the
        # refusal first, then end every job that exists. The first refusal stays.
        self._runners: dict[str, Run] = {}
        self._refusal = ""

    def start(self, job: J, runner: Run) -> None:
        """Add a job, and start its runner.

        Raise ApiError if the name is taken, the job can't be saved, or no job may start any more.
        """
        with self._lock:
            if self._refusal:
                raise ApiError("ServiceUnavailable", self._refusal, 503)
            self.add(job)
            self._runners[job.name] = runner
            runner.start()

    def delete(self, job: J) -> None:
        """Delete a job, once its runner is done; raise ApiError if the job has not ended."""
        if not job.ended:
            raise ApiError("ResourceInUse", f"{job.name} has not ended; stop it before it is deleted.")
        with self._lock:
            runner = self._runners.get(job.name) if self.find(job.name) is job else None
        if runner is not None:
            runner.join()
        with self._lock:
            if self.find(job.name) is job:
                self.remove(job)
                self._runners.pop(job.name, None)

    def refuse(self, reason: str) -> None:
        """Start no job any more."""
        with self._lock:
            self._refusal = self._refusal or reason

    def runners(self) -> list[Run]:
        """Return the runners of all jobs."""
        with self._lock:
            return list(self._runners.values())


class Tags:
    """Adds, lists and deletes tags; ``find`` returns the record of an ARN, or None."""

    def __init__(self, find: Callable[[str], Record | None]) -> None:
        self._find = find
        self.operations: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "AddTags": self._add,
            "ListTags": self._list,
            "DeleteTags": self._delete,
        }

    def _add(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._get(request["ResourceArn"])
        record.add_tags(read_tags(request["Tags"]))
        return {"Tags": record.describe_tags()}

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"Tags": self._get(request["ResourceArn"]).describe_tags()}

    def _delete(self, request: dict[str, Any]) -> dict[str, Any]:
        self._get(request["ResourceArn"]).remove_tags(request["TagKeys"])
        return {}

    def _get(self, arn: str) -> Record:
        record = self._find(arn)
        if record is None:
            raise not_found(arn, "resource")
        return record


def read_tags(tags: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return tags by key; raise ApiError for a duplicate key, or a key reserved by AWS."""
    given = list(tags)
    refuse(broken_by_tags(given))
    return {tag["Key"]: tag["Value"] for tag in given}
