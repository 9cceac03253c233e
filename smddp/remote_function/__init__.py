"""A remote function in its job: the call that was sent, the function that it names, and the result that goes back.

The one who sends it is ``estimators.remote``; both sides write and read by what is here.
"""

from smddp.remote_function.program import run_call as run_call
