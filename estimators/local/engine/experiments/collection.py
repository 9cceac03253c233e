"""The entities of one kind, and the pages of their lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.experiments.entity import AnyEntity, EntityKind
from estimators.local.engine.listing import cut_page
from estimators.local.engine.records import Records, RecordStore


class EntityRecords(Records[AnyEntity]):
    """The entities of one kind, also those of earlier platforms in the store."""

    def __init__(self, kind: EntityKind, entity: type[AnyEntity], arn_prefix: str, store: RecordStore) -> None:
        super().__init__(kind, arn_prefix, store, lambda document: entity.from_json(kind, document))
        self._entity_kind = kind
        self._entity = entity

    def make(self, name: str, members: Mapping[str, Any], tags: Mapping[str, str]) -> AnyEntity:
        """Return a new entity for `add`."""
        return self._entity(self._entity_kind, name, self.arn(name), members, tags)

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
