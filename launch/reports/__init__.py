"""Reports: plans, searches and progress as people and programs read them."""
