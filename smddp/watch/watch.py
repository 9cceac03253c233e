"""The options of the watchdog."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

OnHang = Literal["fail", "report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """When a job counts as hanging, and what happens then: ``smddp.run(main, watch=smddp.Watch(after=60))``.

    Args:
        after: Seconds without a step or a collective after which a rank is judged. It counts as stuck if meanwhile it
            and its child processes used under 2 % of a core, and read and wrote under 1 MiB; otherwise it is busy,
            which is only logged.
        on_hang: ``"fail"`` ends the job with the verdict as its reason. ``"report"`` only logs it, and writes the file.

    Raises:
        ValueError: `after` is under 1 s, or `on_hang` is none of the two.
    """

    after: float = 30.0
    on_hang: OnHang = "fail"

    def __post_init__(self) -> None:
        is_number = isinstance(self.after, int | float) and not isinstance(self.after, bool)
        if not (is_number and 1 <= self.after < math.inf):
            raise ValueError(f"after={self.after!r}. Give seconds, 1 or more.")
        if self.on_hang not in get_args(OnHang):
            raise ValueError(f"on_hang={self.on_hang!r}. Give 'fail' or 'report'.")

    @classmethod
    def of(cls, watch: bool | Watch) -> Watch | None:
        """Return the options for ``smddp.run(watch=…)``; None if nobody watches. Raise ValueError for another type."""
        if isinstance(watch, bool):
            return cls() if watch else None
        if not isinstance(watch, cls):
            raise ValueError(f"watch={watch!r}. Give True, False or smddp.Watch(after=…).")
        return watch
