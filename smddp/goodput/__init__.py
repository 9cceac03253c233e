"""The goodput ledger: what the wall time of a run was spent on, over all its attempts.

Rank 0 of each attempt keeps one record beside the checkpoints (`recorder`); a reader joins the records (`account`).
"""

from smddp.goodput.account import Account as Account
from smddp.goodput.account import join_attempts as join_attempts
from smddp.goodput.account import read_account as read_account
from smddp.goodput.recorder import PartClock as PartClock
from smddp.goodput.recorder import Recorder as Recorder
