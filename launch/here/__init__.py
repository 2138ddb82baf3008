"""Here: what this machine and the hosts of a job reach, measured once, and what all of them must have alike."""
