"""The tests that hurt, as often as one likes: `python -m tests.torture`, or `make torture`."""
