"""The console (``smddp console``): web pages about training jobs, on the local platform and on AWS."""
