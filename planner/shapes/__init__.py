"""What each kernel of the vocabulary gives: a function a kernel, found by walking this folder.

They know no kernel's code.
"""
