"""The entry point of a remote function's job, next to the user's code."""

from __future__ import annotations

from smddp.remote_function import run_call

if __name__ == "__main__":
    run_call()
