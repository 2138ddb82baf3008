"""The step: the passes of training in their order, and the nodes that come beside a network's own."""
