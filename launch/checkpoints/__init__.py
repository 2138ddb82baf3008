"""Checkpoints: the state of a training as regions in safetensors files, beside a manifest that seals them.

In the order in which data pass: `checkpointer` saves in the background, `layout` says which rank writes what, `writer`
writes files and publishes them through `disk`, leaving `words` for a rank that may have to end a save alone, `manifest`
is their form on disk, `folder` finds the latest that is whole, `reader` gives any box of any region back. It does not
know plans: any strategy on any ranks reads a checkpoint.
"""
