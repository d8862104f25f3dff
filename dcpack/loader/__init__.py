"""Loaders: from samples to the batches of a training loop."""

from dcpack.loader.tp_broadcast import TPBroadcastDataLoader

__all__ = ["TPBroadcastDataLoader"]
