"""One saved record: a training, processing or tuning job, an experiment, a trial or a trial component."""

from __future__ import annotations

import abc
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from estimators.local.engine.errors import ApiError, invalid, not_found
from estimators.local.engine.records.store import NOTHING_KEPT, RecordStore

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
