"""From a dataset to balanced micro-batches on every rank, with a state that resumes anywhere."""

from dcpack.loader.batches import LoaderBatch
from dcpack.loader.build import build_distributed_dataloader
from dcpack.loader.config import SHORT_BACKEND_NAMES, DistributedDatasetConfig
from dcpack.loader.cp_planner import CPPlanning
from dcpack.loader.loader import DistributedDataLoader
from dcpack.loader.loggers import log_to_tensorboard, log_to_wandb
from dcpack.loader.planned_cp import packed_fields
from dcpack.loader.protocols import BalancingAlgorithm, BatchSampler, ExternalStepSource
from dcpack.loader.sampler import GlobalBatchSampler
from dcpack.loader.specs import TensorFieldSpec
from dcpack.loader.stages import LoaderClosedError, Span
from dcpack.loader.step_metrics import StepRecord, time_recorder
from dcpack.loader.text_rows import TextRows
from dcpack.loader.tp_broadcast import TPBroadcastDataLoader
from dcpack.loader.types import (
    OVERSIZED_POLICIES,
    PackingConstraints,
    SampleKey,
    SampleMetadata,
    WorkloadCost,
)

__all__ = [
    "OVERSIZED_POLICIES",
    "SHORT_BACKEND_NAMES",
    "BalancingAlgorithm",
    "BatchSampler",
    "CPPlanning",
    "DistributedDataLoader",
    "DistributedDatasetConfig",
    "ExternalStepSource",
    "GlobalBatchSampler",
    "LoaderBatch",
    "LoaderClosedError",
    "PackingConstraints",
    "SampleKey",
    "SampleMetadata",
    "Span",
    "StepRecord",
    "TPBroadcastDataLoader",
    "TensorFieldSpec",
    "TextRows",
    "WorkloadCost",
    "build_distributed_dataloader",
    "log_to_tensorboard",
    "log_to_wandb",
    "packed_fields",
    "time_recorder",
]
