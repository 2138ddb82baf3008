"""Lower bounds on the time of a step, and the additive cost model, whose cheapest plan can be found exactly.

lower_bound   for all plans: the work of all processors, and the longest chain of passes
additive      a plan's cost as a sum over nodes and pairs of nodes
transfer_bound   a quick bound below the cost of a pair
cost_tables, elimination   the cheapest plan (the search `dynamic`, layer-wise starts)
partial_bounds, flow_transfers, path_bounds   for plans of which some nodes are decided: used by branch and bound
              (`exhaustive`)
"""
