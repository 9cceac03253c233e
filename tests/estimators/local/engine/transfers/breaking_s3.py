"""An S3 whose connections break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Breaking:
    """A client whose connections break after some bytes, as often as it is told to."""

    def __init__(
        self, s3: Any, *, after: int, times: int, change: Callable[[], Any] = lambda: None, ranges: bool = True
    ) -> None:
        self._s3, self._after, self._times, self._change, self._ranges = s3, after, times, change, ranges

    def __getattr__(self, name: str) -> Any:
        return getattr(self._s3, name)

    def get_object(self, **request: Any) -> Any:
        if not self._ranges:
            request.pop("Range", None)
        response = self._s3.get_object(**request)
        if self._times:
            self._times -= 1
            raw = response["Body"]._raw_stream
            whole = raw.read
            left = [self._after]

            def read(amount: int) -> bytes:
                data: bytes = whole(min(amount, left[0]))
                left[0] -= len(data)
                if not data:
                    self._change()
                return data

            raw.read = read
        return response
