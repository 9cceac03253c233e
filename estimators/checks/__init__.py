"""Find the problems of a job before anything is uploaded or paid for: parameters, AWS's limits, channels."""
