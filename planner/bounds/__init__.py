"""Lower bounds on the time of a step, and the additive model, whose plan of least price can be found exactly.

  lower_bound   for all plans: the work of all processors, and the longest chain of passes
  additive      a plan's price as a sum over nodes and pairs of nodes
  missing       a quick bound below the price of a pair
  tables, elimination   the plan of least price (the search `dynamic`, layer-wise starts)
  relaxed, crossing, ladder   for plans of which some nodes are decided: what branch and bound cuts off (`exhaustive`)
"""
