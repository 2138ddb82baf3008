"""Jobs: a model, a machine and ranks put together; what is checked before; plans looked for, and lowered."""
