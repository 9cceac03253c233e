"""A trial run of a job on the embedded platform, before anything is paid for."""

from estimators.rehearsal.rehearsal import Rehearsal as Rehearsal
from estimators.rehearsal.rehearsal import rehearse as rehearse
