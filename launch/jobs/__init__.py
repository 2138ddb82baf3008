"""Jobs: combine a model, a machine and ranks; check options beforehand; search for plans, and lower them."""
