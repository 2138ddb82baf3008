"""Lowering, part by part: what each pass of a node is under a Config, the instances of it, and tasks in flat arrays."""
