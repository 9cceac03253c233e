"""The entities of one kind by their case-insensitive names, and the pages of their lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments.entity import AnyEntity, EntityKind
from estimators.local.engine.job_store import JobStore
from estimators.local.engine.listing import cut_page


class Collection(Generic[AnyEntity]):
    """The entities of one kind, also those in the store; their ARNs are ``<arn_prefix>:<kind>/<name>``."""

    def __init__(self, kind: EntityKind, entity: type[AnyEntity], arn_prefix: str, store: JobStore) -> None:
        self._kind = kind
        self._entity = entity
        self._arn_prefix = arn_prefix
        self._store = store
        self._entities = store.load(kind.key, lambda document, saver: entity.from_json(kind, document, saver))

    def make(
        self, name: str, members: Mapping[str, Any], tags: Mapping[str, str], *, instead_of: AnyEntity | None = None
    ) -> AnyEntity:
        """Return a new entity for `add`; raise ApiError if its name is taken, except by ``instead_of``."""
        if self.find(name) is not instead_of:
            word = self._kind.word
            raise invalid(f"{word} names are unique, whatever their case: {word} '{self.arn(name)}' already exists.")
        saver = self._store.saver(self._kind.key, name.lower())
        return self._entity(self._kind, name, self.arn(name), members, tags, saver)

    def add(self, entity: AnyEntity) -> None:
        """Save an entity, in place of the one of its name; if that fails, raise ApiError and add nothing."""
        self._store.admit(entity)
        self._entities[entity.name.lower()] = entity

    def remove(self, entity: AnyEntity) -> None:
        """Forget an entity."""
        del self._entities[entity.name.lower()]
        entity.forget()

    def find(self, name: str) -> AnyEntity | None:
        """Return the entity of a name, or None."""
        return self._entities.get(name.lower())

    def get(self, name: str) -> AnyEntity:
        """Return the entity of a name; raise ApiError (ResourceNotFound) if it is absent."""
        entity = self.find(name)
        if entity is None:
            raise self._kind.missing(self.arn(name))
        return entity

    def all(self) -> list[AnyEntity]:
        """Return all entities."""
        return list(self._entities.values())

    def arn(self, name: str) -> str:
        """Return the ARN of a name."""
        return f"{self._arn_prefix}:{self._kind.key}/{name}"

    def page(
        self, described: Iterable[Mapping[str, Any]], request: Mapping[str, Any], shown: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return one page of the descriptions; raise ApiError for an invalid NextToken.

        ``shown`` maps further members of a summary to members of a description.
        """
        word = self._kind.word
        sort_by = f"{word}Name" if request.get("SortBy") == "Name" else "CreationTime"
        wanted = [each for each in described if _is_in_time(each, request)]
        page, token = cut_page(wanted, sort_by, {"SortOrder": "Descending"} | dict(request), name=f"{word}Name")
        names = {f"{word}Name": f"{word}Name", f"{word}Arn": f"{word}Arn", "DisplayName": "DisplayName", **shown}
        names |= {"CreationTime": "CreationTime", "LastModifiedTime": "LastModifiedTime"}
        summaries = [{to: each[name] for to, name in names.items() if name in each} for each in page]
        return {f"{word}Summaries": summaries, **token}


def _is_in_time(described: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    after, before = request.get("CreatedAfter"), request.get("CreatedBefore")
    if after is not None and described["CreationTime"] <= parse_to_aware_datetime(after):
        return False
    return before is None or bool(described["CreationTime"] < parse_to_aware_datetime(before))
