"""The errors that smddp raises for what a user, or the platform, did.

Each message says what was found, what is allowed and what to do. What *we* did wrong is an ``assert``.
"""

from __future__ import annotations


class SmddpError(Exception):
    """Base of every error that smddp raises on purpose."""


class ClusterError(SmddpError, ValueError):
    """The environment does not describe one consistent cluster."""


class HyperparameterError(SmddpError, ValueError):
    """A hyperparameter is missing, unknown, or not of its field's type."""


class JobError(SmddpError, ValueError):
    """The job's directories or configuration files are not what the /opt/ml contract promises."""


class SourceError(SmddpError, ValueError):
    """The bundle of training code is missing, damaged or unsafe to unpack."""


class DistributedError(SmddpError, RuntimeError):
    """The processes of a job could not be joined, or do not fit their devices."""


class UnguardedScriptError(SmddpError, RuntimeError):
    """A process that multiprocessing started imports the script, and no guard keeps it from beginning the job again."""


class CheckpointError(SmddpError, RuntimeError):
    """A checkpoint could not be written, verified or applied."""


class DataError(SmddpError, ValueError):
    """Training data is missing, damaged, not readable, or not what it was when it was indexed."""


class TrainingDivergedError(SmddpError, ArithmeticError):
    """The model's weights are not finite any more, which no further step can mend; or gradients would make them so."""


class RemoteFunctionError(SmddpError, ValueError):
    """A remote function can't be called as it is, or its arguments or result can't travel or are not what was sent."""
