"""What a job's hosts leave behind: their exits, their /opt/ml, and the failure reason that follows from both."""
