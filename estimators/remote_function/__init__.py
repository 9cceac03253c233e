"""A function as a job: called here with its arguments, it runs as a training job, and its result comes back.

What the job itself does with the call is ``smddp.remote_function``'s.
"""

from estimators.remote_function.function import RemoteFunction as RemoteFunction
from estimators.remote_function.function import remote as remote
from estimators.remote_function.remote_job import RemoteJob as RemoteJob
