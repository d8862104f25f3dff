"""The back end on JAX, `jax`: processes of jax.distributed, devices of a mesh, batches as global arrays.

It is chosen by name, ``dcpack.get_backend("jax")``; jax is imported when `dcpack_jax.backend` is.
"""
