"""Sketches of plans: what a step would take, to within some percent, in microseconds instead of milliseconds."""
