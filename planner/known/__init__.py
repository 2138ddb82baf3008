"""Known plans: those that everyone knows, from which searches begin."""
