"""Simulation: the event loop, list scheduling, delta simulation after a change to a plan, and periodic schedules."""
