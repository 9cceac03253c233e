"""The options of the watchdog."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal, get_args

OnHang = Literal["fail", "report", "restart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """When a job counts as hanging, and what happens then: ``smddp.run(main, watch=smddp.Watch(after=60))``.

    Args:
        after: Seconds without a step or a collective after which a rank is judged; or five times the usual
            pause between two of them, if that is longer. The rank counts as stuck if meanwhile it
            and its child processes used under 2 % of a core, and read and wrote under 1 MiB; otherwise it is busy,
            which is only logged.
        patience: Seconds from the verdict to the end of the job, in which the rank may move again. A mismatched
            collective and a dead process end it at once.
        on_hang: ``"fail"`` ends the ranks with the verdict as the reason; torchrun starts them again if the job has
            restarts left, as after any failure. ``"restart"`` does the same, and refuses a job without restarts.
            ``"report"`` only logs the verdict, and writes the file.

    Raises:
        ValueError: `after` is under 1 s, `patience` is negative, or `on_hang` is none of the three.
    """

    after: float = 30.0
    patience: float = 270.0
    on_hang: OnHang = "fail"

    def __post_init__(self) -> None:
        for name, least in (("after", 1), ("patience", 0)):
            seconds = getattr(self, name)
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not (is_number and least <= seconds < math.inf):
                raise ValueError(f"{name}={seconds!r}. Give seconds, {least} or more.")
        if self.on_hang not in get_args(OnHang):
            raise ValueError(f"on_hang={self.on_hang!r}. Give 'fail', 'report' or 'restart'.")

    @classmethod
    def of(cls, watch: bool | Watch) -> Watch | None:
        """Return the options for ``smddp.run(watch=…)``; None for no watchdog. Raise ValueError for another type."""
        if isinstance(watch, bool):
            return cls() if watch else None
        if not isinstance(watch, cls):
            raise ValueError(f"watch={watch!r}. Give True, False or smddp.Watch(after=…).")
        if watch.on_hang == "restart" and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
            raise ValueError(
                "on_hang='restart', and this job has no restarts. Give `smddp run --max-restarts 3`, or the "
                "environment variable SMDDP_MAX_RESTARTS=3 to a job whose distribution is torchrun."
            )
        return watch
