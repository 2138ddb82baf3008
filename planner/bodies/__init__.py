"""Bodies: what an operator's body may call, and how its calls are recorded, checked and put together."""
