"""An experiment, a trial or a trial component, as a record that is kept.

Whoever changes one holds the lock of `Experiments`, but for its tags; the members are replaced and never changed, so
that a thread that keeps the record because of its tags sees them whole.
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
    """What an entity is."""

    word: str
    """What its members' names begin with: ``TrialComponent``."""
    key: str
    """What its ARN, and the store, call it."""

    def missing(self, arn: str) -> ApiError:
        """Return the error of a request about one that is not there."""
        said = f"{self.word} '{arn}' does not exist: create it with Create{self.word}, or name another one."
        return ApiError("ResourceNotFound", said)


EXPERIMENT = EntityKind(word="Experiment", key="experiment")
TRIAL = EntityKind(word="Trial", key="experiment-trial")
COMPONENT = EntityKind(word="TrialComponent", key="experiment-trial-component")

_TIMES = ("StartTime", "EndTime")


class Entity:
    """A record from its creation on.

    Args:
        kind: What it is.
        name: Its name; case makes no difference between two.
        arn: Its ARN.
        members: What its description shows beside name, ARN and the times of its changes; times as datetimes.
        tags: Its tags by their keys.
        saver: Saves it at each change.
    """

    def __init__(
        self,
        kind: EntityKind,
        name: str,
        arn: str,
        members: Mapping[str, Any],
        tags: Mapping[str, str],
        saver: RecordSaver,
    ) -> None:
        self.kind = kind
        self.name = name
        self.arn = arn
        self.members = members
        self.tags = dict(tags)
        self.created = self.modified = datetime.now(timezone.utc)
        # Held while it is kept. Order: who changes it keeps it after that; so the last to keep it knows of all changes,
        # those of its tags, which are made without the lock of `Experiments`, too.
        self._keeping = threading.Lock()
        self._saver = saver

    @classmethod
    def from_json(cls: type[AnyEntity], kind: EntityKind, document: Mapping[str, Any], saver: RecordSaver) -> AnyEntity:
        """Return an entity that an earlier platform has kept; ``document`` is what `to_json` has returned."""
        members = dict(document["members"])
        members.update({name: datetime.fromisoformat(members[name]) for name in _TIMES if name in members})
        entity = cls(kind, document["name"], document["arn"], members, document["tags"], saver)
        entity.created = datetime.fromisoformat(document["created"])
        entity.modified = datetime.fromisoformat(document["modified"])
        entity._restore(document)
        return entity

    def _restore(self, document: Mapping[str, Any]) -> None:
        """Take from a document what this class adds to the members."""

    def to_json(self) -> dict[str, Any]:
        """Return all that another platform needs; times as datetimes."""
        return {
            "name": self.name,
            "arn": self.arn,
            "members": self.members,
            "tags": dict(self.tags),
            "created": self.created,
            "modified": self.modified,
        }

    def note(self) -> None:
        """Have it kept as it is now."""
        with self._keeping:
            self._saver.save(self.to_json)

    def forget(self) -> None:
        """Have it kept no more: it is deleted."""
        with self._keeping:
            self._saver.delete()
            self._saver = NO_SAVER

    def change(self, members: Mapping[str, Any]) -> None:
        """Replace members, and keep that."""
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
