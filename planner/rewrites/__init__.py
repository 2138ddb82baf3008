"""Rewrites of graphs, one a file with `rewrite(graph) -> Graph`, found by the file's name."""
