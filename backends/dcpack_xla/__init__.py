"""The back end on torch_xla: torch-xla, for TPUs.

It is chosen by name, ``dcpack.get_backend("torch-xla")``; torch_xla is imported then, and not before.
"""
