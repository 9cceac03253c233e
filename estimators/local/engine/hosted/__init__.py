"""Jobs on hosts: what training and processing jobs share.

`HostedRecord` is what is known of a job, and decides how it ends; `HostedRunner` does its work in a thread, attempt
after attempt; `AttemptHosts` runs the hosts of one attempt. `HostedRecords` are all jobs of a kind.
"""
