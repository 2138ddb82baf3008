"""Bounds: what no plan can be below, and the additive model that has an exact optimum."""
