"""Sketches: a cost model that estimates a plan's step to within some percent, in microseconds instead of milliseconds.

A sketch is a small model of one graph on one machine, in flat arrays for compiled loops. A search walks through plans
in the sketch, and simulates only the plans that such walks end with. Read it in this order:

  arrays    the arrays, and the words for what is in them: Config, layout, flow, end, read, block, kept and tried plan
  spaces    numbers the Configs that each node may have
  layouts   where the parts of a node's operands and results lie in their arrays
  order, draft    which passes a sketch keeps, in which order, and the flows between them (`Program`)
  works, largest  seconds and bytes of a node under a split
  contents, prices    what lies where, and seconds of a transfer from one layout to another
  reads     the transfers that each read of a plan takes
  classes   processors that fare alike, and pipeline stages
  sweep     the seconds of one step of a plan, and of a changed plan with little work
  moves, metropolis  random changes to a plan, and the Metropolis walk that accepts or rejects them
  sketch    all of it put together; chains, sieve: how searches use it
"""
