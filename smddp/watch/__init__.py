"""The watchdog: finds the rank for which the others wait, and says where it stands and of what kind the fault is.

One thread in each rank samples the main thread, and shares what it sees through the job's store. The step itself only
pays for a hook that notes each collective.
"""

from smddp.watch.options import Watch as Watch
from smddp.watch.watchdog import Watchdog as Watchdog
from smddp.watch.watchdog import is_hang as is_hang
