"""Communicators: how bytes get from one processor's memory to another's.

Read messages, forms (collectives of messages), base (the interface), then local or mpi. None knows tasks or kernels.
"""
