"""Choices: which Configs each node may have, and the random changes to a plan."""
