"""What a job's hosts leave behind: how each ended, its /opt/ml, and what that says of the job."""
