"""Costs: what collectives take by which algorithm, and what was measured, kept and learned."""
