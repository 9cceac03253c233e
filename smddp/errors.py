"""The errors that smddp raises for mistakes of a user or the platform.

Each message says what was found, what is allowed and what to do. A defect of smddp itself is an ``assert``.
"""

from __future__ import annotations


class SmddpError(Exception):
    """Base of every error that smddp raises on purpose."""


class ClusterError(SmddpError, ValueError):
    """The environment does not describe one consistent cluster."""


class HyperparameterError(SmddpError, ValueError):
    """A hyperparameter is missing, unknown, or not of its field's type."""


class JobError(SmddpError, ValueError):
    """The job's directories, configuration files or variables do not follow the /opt/ml contract."""


class SourceError(SmddpError, ValueError):
    """The bundle of training code is missing, damaged or unsafe to unpack."""


class DistributedError(SmddpError, RuntimeError):
    """The processes of a job could not join each other, or do not fit their devices."""


class UnguardedScriptError(SmddpError, RuntimeError):
    """A process of multiprocessing imports the script, which has no ``__main__`` guard and would restart the job."""


class CheckpointError(SmddpError, RuntimeError):
    """A checkpoint could not be written, verified or applied."""


class DataError(SmddpError, ValueError):
    """Training data is missing, damaged or unreadable, or differs from its index."""


class TrainingDivergedError(SmddpError, ArithmeticError):
    """The model's weights are not finite, which no further step can repair, or its gradients would make them so."""


class ReplicasDifferError(SmddpError, ArithmeticError):
    """The ranks' copies of the model have different weights, and no further step makes them equal again."""


class RemoteFunctionError(SmddpError, ValueError):
    """A remote function can't be called this way, or its arguments or result can't be sent, or changed on the way."""
