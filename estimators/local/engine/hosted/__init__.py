"""Jobs on hosts: the shared part of training and processing jobs.

`HostedRecord` stores a job's state, and decides how the job ends; `HostedRunner` does its work in a thread, attempt
after attempt; `AttemptHosts` runs the hosts of one attempt. `HostedRecords` are all jobs of a kind.
"""
