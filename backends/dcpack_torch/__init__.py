"""Back ends on torch.distributed: torch-gloo, torch-nccl and torch-hccl.

They are chosen by name, ``dcpack.get_backend("torch-gloo")``; torch is imported when `dcpack_torch.backend` is.
"""
