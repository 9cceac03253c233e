"""Regular packages, so that no other `tests` on the path is taken for this one: `python -m tests.torture`."""
