"""The record of an experiment, a trial or a trial component.

Changes need the lock of `Experiments`, except changes of tags. The members are replaced, never modified: a thread that
saves the record after a change of its tags sees them whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

from estimators.local.engine.errors import ApiError, invalid
from estimators.local.engine.records import Record, RecordKind

AnyEntity = TypeVar("AnyEntity", bound="EntityRecord")


class EntityKind(RecordKind):
    """A kind of entity. Names have no case, and AWS's errors show ARNs."""

    def key_of(self, name: str) -> str:
        """Return the name in lower case."""
        return name.lower()

    def missing(self, name: str, arn: str) -> ApiError:  # noqa: ARG002  # AWS shows the ARN
        """Return the error for an absent entity."""
        said = f"{self.word} '{arn}' does not exist: create it with Create{self.word}, or name another one."
        return ApiError("ResourceNotFound", said)

    def taken(self, name: str, arn: str) -> ApiError:  # noqa: ARG002  # AWS shows the ARN
        """Return the error for a name that another entity has."""
        return invalid(f"{self.word} names are unique, whatever their case: {self.word} '{arn}' already exists.")


EXPERIMENT = EntityKind(word="Experiment", resource="experiment", key="experiment")
TRIAL = EntityKind(word="Trial", resource="experiment-trial", key="experiment-trial")
COMPONENT = EntityKind(word="TrialComponent", resource="experiment-trial-component", key="experiment-trial-component")

_TIMES = ("StartTime", "EndTime")


class EntityRecord(Record):
    """The record of an experiment, a trial or a trial component from its creation on."""

    def __init__(
        self,
        kind: EntityKind,
        name: str,
        arn: str,
        members: Mapping[str, Any],  # of the description, besides name, ARN and times of changes; times as datetimes
        tags: Mapping[str, str],
    ) -> None:
        super().__init__(name, arn, tags)
        self.kind: EntityKind = kind
        self.members = members
        self.created = self.modified = datetime.now(timezone.utc)

    @classmethod
    def from_json(cls: type[AnyEntity], kind: EntityKind, document: Mapping[str, Any]) -> AnyEntity:
        """Return an entity of an earlier platform from its `to_json` document, with times as text."""
        entity = cls(kind, document["name"], document["arn"], document["members"], document["tags"])
        entity._restore(document)
        return entity

    def _restore(self, document: Mapping[str, Any]) -> None:
        super()._restore(document)
        times = {name: datetime.fromisoformat(self.members[name]) for name in _TIMES if name in self.members}
        self.members = {**self.members, **times}
        self.created = datetime.fromisoformat(document["created"])
        self.modified = datetime.fromisoformat(document["modified"])

    def to_json(self) -> dict[str, Any]:
        """Return the document to save, with times as datetimes."""
        return {
            **super().to_json(),
            "name": self.name,
            "members": self.members,
            "created": self.created,
            "modified": self.modified,
        }

    def change(self, members: Mapping[str, Any]) -> None:
        """Replace members, and save the record."""
        with self._lock:
            self.members = {**self.members, **members}
            self.modified = datetime.now(timezone.utc)
            self.note()

    def describe(self) -> dict[str, Any]:
        """Return the description as AWS shows it."""
        return {
            f"{self.kind.word}Name": self.name,
            f"{self.kind.word}Arn": self.arn,
            "DisplayName": self.name,
            **self.members,
            "CreationTime": self.created,
            "LastModifiedTime": self.modified,
        }
