"""Run a submit script without sending anything, to see its jobs."""
