"""Starting the processes of a job on this machine: by torchrun's agent, by mpirun, or several nodes at once."""
