"""The ranks of these tests are started as those of tests/smddp/distributed are."""

from tests.smddp.distributed.conftest import _fork_python, port, run_ranks

__all__ = ["_fork_python", "port", "run_ranks"]
