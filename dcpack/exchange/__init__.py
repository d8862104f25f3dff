"""From a plan to packed batches: routes, bytes, the one all-to-all, and the way back."""

from dcpack.exchange.align_fields import align_fields
from dcpack.exchange.batches import PackedBatch, build_batches
from dcpack.exchange.codec import decode, encode
from dcpack.exchange.fields import NEUTRAL_VALUES, PER_TOKEN_FIELDS, SPELLINGS, PreparedSample, prepare_samples
from dcpack.exchange.restore import restore
from dcpack.exchange.routes import ROUTINGS, Routes, build_routes
from dcpack.exchange.run import (
    check_same_plan,
    exchange_samples,
    kept_valid_tokens,
    move_samples,
    process_of_rank,
    ranks_of_process,
    routes_for,
)
from dcpack.exchange.shapes import BatchShape, StaticShapes, shapes_of_bins
from dcpack.exchange.table import FieldKind, GatheredSamples, SampleTable, gather_prepared, gather_samples

__all__ = [
    "NEUTRAL_VALUES",
    "PER_TOKEN_FIELDS",
    "ROUTINGS",
    "SPELLINGS",
    "BatchShape",
    "FieldKind",
    "GatheredSamples",
    "PackedBatch",
    "PreparedSample",
    "Routes",
    "SampleTable",
    "StaticShapes",
    "align_fields",
    "build_batches",
    "build_routes",
    "check_same_plan",
    "decode",
    "encode",
    "exchange_samples",
    "gather_prepared",
    "gather_samples",
    "kept_valid_tokens",
    "move_samples",
    "prepare_samples",
    "process_of_rank",
    "ranks_of_process",
    "restore",
    "routes_for",
    "shapes_of_bins",
]
