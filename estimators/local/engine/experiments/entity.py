"""An experiment, a trial or a trial component, as a saved record.

Changes need the lock of `Experiments`, except changes of tags. The members are replaced, never modified: a thread that
saves the record after a change of its tags sees them whole.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

from estimators.local.engine.errors import ApiError
from estimators.local.engine.job_store import NO_SAVER, RecordSaver

AnyEntity = TypeVar("AnyEntity", bound="Entity")


@dataclass(kw_only=True, slots=True, frozen=True)
class EntityKind:
    """A kind of entity."""

    word: str
    """Prefix of its members' names: ``TrialComponent``."""
    key: str
    """Its name in ARNs and in the store."""

    def missing(self, arn: str) -> ApiError:
        """Return the error for an absent entity."""
        said = f"{self.word} '{arn}' does not exist: create it with Create{self.word}, or name another one."
        return ApiError("ResourceNotFound", said)


EXPERIMENT = EntityKind(word="Experiment", key="experiment")
TRIAL = EntityKind(word="Trial", key="experiment-trial")
COMPONENT = EntityKind(word="TrialComponent", key="experiment-trial-component")

_TIMES = ("StartTime", "EndTime")


class Entity:
    """A record from its creation on, saved at each change."""

    def __init__(
        self,
        kind: EntityKind,
        name: str,
        arn: str,
        members: Mapping[str, Any],  # of the description, besides name, ARN and times of changes; times as datetimes
        tags: Mapping[str, str],
        saver: RecordSaver,
    ) -> None:
        self.kind = kind
        self.name = name
        self.arn = arn
        self.members = members
        self.tags = dict(tags)
        self.created = self.modified = datetime.now(timezone.utc)
        # Held while the record is saved. Order: a thread changes the record first, then saves it, so the last save has
        # all changes, also those of tags, which are made without the lock of `Experiments`. Taken after that lock and
        # the lock of `Tags`, before the store's.
        self._keeping = threading.Lock()
        self._saver = saver

    @classmethod
    def from_json(cls: type[AnyEntity], kind: EntityKind, document: Mapping[str, Any], saver: RecordSaver) -> AnyEntity:
        """Return an entity of an earlier platform from its `to_json` document, with times as text."""
        members = dict(document["members"])
        members.update({name: datetime.fromisoformat(members[name]) for name in _TIMES if name in members})
        entity = cls(kind, document["name"], document["arn"], members, document["tags"], saver)
        entity.created = datetime.fromisoformat(document["created"])
        entity.modified = datetime.fromisoformat(document["modified"])
        entity._restore(document)
        return entity

    def _restore(self, document: Mapping[str, Any]) -> None:
        """Restore the fields that a subclass adds."""

    def to_json(self) -> dict[str, Any]:
        """Return the record to save, with times as datetimes."""
        return {
            "name": self.name,
            "arn": self.arn,
            "members": self.members,
            "tags": dict(self.tags),
            "created": self.created,
            "modified": self.modified,
        }

    def note(self) -> None:
        """Save the record as it is now."""
        with self._keeping:
            self._saver.save(self.to_json)

    def forget(self) -> None:
        """Delete the record from the store, and stop saving it."""
        with self._keeping:
            self._saver.delete()
            self._saver = NO_SAVER

    def change(self, members: Mapping[str, Any]) -> None:
        """Replace members, and save the record."""
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
