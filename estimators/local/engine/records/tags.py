"""The operations on the tags of any record, found by its ARN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from estimators.local.engine.errors import not_found, refuse
from estimators.local.engine.records.record import Record
from estimators.request_rules import broken_by_tags


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
