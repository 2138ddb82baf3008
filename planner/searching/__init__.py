"""Around one search: what is chosen before it, how it walks, and what improves its result.

Before: rewriting, forks, forecasts, accumulation, layerwise, least_memory. Within: walks, walkers, memory_walks. After:
results, refinement, subsets, screening, pipelines, low_memory, fronts.
"""
