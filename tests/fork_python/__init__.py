"""A Python for tests whose processes begin with torch imported: forked, a hundred times faster than started."""

from tests.fork_python.fork_python import ForkPython as ForkPython
