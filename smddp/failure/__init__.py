"""The failure of a job: its report, the file that holds the report, and what the report is made from. No torch here.

`report` composes the report of an exception, and of a rank or program that ended without one. `report_file` writes and
reads the file ``output/failure``. `printed_error` finds the error in what a program printed. `stack_frames` shows where
in the user's code a stack is. `host_memory` tells an OOM kill from any other SIGKILL.
"""

from smddp.failure.host_memory import HostMemory as HostMemory
from smddp.failure.printed_error import CAUSE_SECONDS as CAUSE_SECONDS
from smddp.failure.printed_error import LAUNCHER as LAUNCHER
from smddp.failure.printed_error import LOG_TIME as LOG_TIME
from smddp.failure.printed_error import LOST_CONTACT as LOST_CONTACT
from smddp.failure.printed_error import find_error as find_error
from smddp.failure.printed_error import hint as hint
from smddp.failure.printed_error import last_lines as last_lines
from smddp.failure.report import describe_error as describe_error
from smddp.failure.report import describe_exit as describe_exit
from smddp.failure.report import describe_rank_exit as describe_rank_exit
from smddp.failure.report import find_printed as find_printed
from smddp.failure.report import killed_by as killed_by
from smddp.failure.report import rank_of as rank_of
from smddp.failure.report import within_limit as within_limit
from smddp.failure.report_file import ReportFile as ReportFile
from smddp.failure.report_file import tell_failure as tell_failure
from smddp.failure.stack_frames import frame_lines as frame_lines
from smddp.failure.stack_frames import thread_traceback as thread_traceback
