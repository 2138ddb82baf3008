"""This machine and the hosts of a job: what they attain, measured once, and what must be the same on all of them."""
