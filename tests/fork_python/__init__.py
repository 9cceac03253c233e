"""A Python for tests whose processes begin with torch and the SDK imported: forked, and not started."""

from tests.fork_python.fork_python import TORCH as TORCH
from tests.fork_python.fork_python import ForkPython as ForkPython
