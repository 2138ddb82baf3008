"""Searching, beyond one search: walks side by side, limits of memory, buckets, microbatches, pipelines."""
