"""Simulation, loop by loop: in which order tasks are served, what a change to a plan moves, and what repeats."""
