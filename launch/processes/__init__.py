"""Processes: which rank this one is, how ranks are started, signalled and told apart, and how a job ends."""
