"""Lowering, part by part: the template of each pass of a node under a Config, its instances, and tasks in flat arrays.
"""
