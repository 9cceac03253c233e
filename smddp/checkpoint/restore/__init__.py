"""From bytes that nobody vouches for to a run that goes on: verified in memory, then given to the parts of the run."""
