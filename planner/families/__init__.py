"""Families: what operators of one kind have in common, so that each is a few lines."""
