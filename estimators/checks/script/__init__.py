"""What the syntax of a job's script says before it is sent. Nothing of the user's is imported or run."""
