"""A function as a job: a call runs as a training job, and returns the function's result.

The part inside the job is in ``smddp.remote_function``.
"""

from estimators.remote_function.function import RemoteFunction as RemoteFunction
from estimators.remote_function.function import remote as remote
from estimators.remote_function.remote_job import RemoteJob as RemoteJob
