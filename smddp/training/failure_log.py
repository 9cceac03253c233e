"""Log a rank's failure: the message with the script's own frames, from one rank; all tracebacks are kept in files.

Several ranks mostly fail together, by the same error or because they lost the rank that failed. So one rank's report is
logged whole, and one line for each other rank.
"""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

from smddp.errors import SmddpError
from smddp.job import failure_report
from smddp.path_text import shown_path

logger = logging.getLogger(__name__)


class FailureLog:
    """The failure of one rank. The whole traceback is written to a file of the output data at once."""

    def __init__(self, error: BaseException, output_data_dir: Path, rank: int) -> None:
        self._error = error
        self._path = output_data_dir / f"traceback-rank-{rank}.txt"
        self._is_kept = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="replace")
            self._is_kept = True
        except OSError as problem:
            if not self._is_message_enough:
                logger.error("the traceback can't be written to %s: %s", self._path, problem)

    @property
    def _is_message_enough(self) -> bool:
        """Whether the report needs no traceback: smddp itself raised the error, and no other error caused it."""
        frames = traceback.extract_tb(self._error.__traceback__)
        is_own = not frames or frames[-1].filename.startswith(failure_report.PACKAGE_PATH)
        return isinstance(self._error, SmddpError) and self._error.__cause__ is None and is_own

    def tell(self, report: str) -> None:
        """Log a report of this rank's failure, and the place of the whole traceback."""
        if self._is_kept:
            logger.critical("failed: %s\nThe whole traceback is in %s", report, shown_path(self._path))
        else:
            logger.critical("failed: %s", report, exc_info=None if self._is_message_enough else self._error)

    def mention(self) -> None:
        """Log in one line that this rank failed, too."""
        what = traceback.format_exception_only(self._error)[-1].partition("\n")[0]
        logger.error("failed, too: %s", what)
