"""The operations on the tags of any resource with an ARN."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from estimators.local.engine.errors import invalid, not_found
from estimators.local.engine.job_request import read_tags

_MAX_TAGS = 50


class Tagged(Protocol):
    """A resource with tags."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def tags(self) -> dict[str, str]:
        """Its tags by their keys."""

    def note(self) -> None:
        """Save the resource as it is now."""


class Tags:
    """Adds, lists and deletes tags; ``find`` returns the resource of an ARN, or None."""

    def __init__(self, find: Callable[[str], Tagged | None]) -> None:
        self._find = find
        # Guards the tags of all resources: change and save are one step. Taken before the lock of a resource, which
        # `note` takes, and of the store; `find` is called without it.
        self._lock = threading.Lock()
        self.operations: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "AddTags": self._add,
            "ListTags": self._list,
            "DeleteTags": self._delete,
        }

    def _add(self, request: dict[str, Any]) -> dict[str, Any]:
        tagged = self._get(request["ResourceArn"])
        added = read_tags(request["Tags"])
        with self._lock:
            if len(tagged.tags | added) > _MAX_TAGS:
                raise invalid(f"{tagged.name} would have {len(tagged.tags | added)} tags; {_MAX_TAGS} is the limit.")
            tagged.tags.update(added)
            tagged.note()
        return {"Tags": tag_list(tagged)}

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"Tags": tag_list(self._get(request["ResourceArn"]))}

    def _delete(self, request: dict[str, Any]) -> dict[str, Any]:
        tagged = self._get(request["ResourceArn"])
        with self._lock:
            for key in request["TagKeys"]:
                tagged.tags.pop(key, None)
            tagged.note()
        return {}

    def _get(self, arn: str) -> Tagged:
        tagged = self._find(arn)
        if tagged is None:
            raise not_found(arn, "resource")
        return tagged


def tag_list(tagged: Tagged) -> list[dict[str, str]]:
    """Return tags as AWS shows them."""
    return [{"Key": key, "Value": value} for key, value in list(tagged.tags.items())]
