"""A remote function in its job: the sent call, the function that it names, and the result that it returns.

``estimators.remote`` sends the call; both sides use the formats of this package.
"""

from smddp.remote_function.program import run_call as run_call
