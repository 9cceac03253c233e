"""The transfers between S3 and the hosts of a job: input channels, folders that are kept in step, and output."""
