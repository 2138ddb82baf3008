"""The runtime does: it runs tasks on pieces of regions, moves what must move, and reports when each task ran.

Reading order: region, task, machine, timeline (the words); dependence, collectives, memory (what follows from them);
mapper, executor (in which order); backends and comm (by what means); watchdog, debug. It knows no operator, layer or
gradient.
"""
