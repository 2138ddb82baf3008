"""Measuring: times plans, kinds of tasks, links, and the choices for kernel calls."""
