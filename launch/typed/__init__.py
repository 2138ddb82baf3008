"""Typed: what users write on a command line: options, names with settings, files theirs and for them."""
