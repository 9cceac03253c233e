"""The results of a job's hosts: exit codes, the /opt/ml trees, and the failure reason derived from both."""
