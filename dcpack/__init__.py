"""dcpack: exact and fast packing, balancing and dynamic context parallelism for variable-length sequences."""

from dcpack.api import balance, pack, plan
from dcpack.batched_data_dict import BatchedDataDict, SlicedDataDict
from dcpack.comm import Backend, Communicator, get_backend, run_ranks
from dcpack.cost import CostModel, QuadraticCost, RingCost
from dcpack.errors import ArgumentError, BackendError, DcpackError, InfeasibleError, PeerError, PlanError
from dcpack.loader import (
    BalancingAlgorithm,
    CPPlanning,
    DistributedDataLoader,
    DistributedDatasetConfig,
    ExternalStepSource,
    GlobalBatchSampler,
    PackingConstraints,
    SampleMetadata,
    TensorFieldSpec,
    TPBroadcastDataLoader,
    WorkloadCost,
    build_distributed_dataloader,
)
from dcpack.padding import PaddingRule
from dcpack.plans import Plan
from dcpack.topology import Topology

__all__ = [
    "ArgumentError",
    "Backend",
    "BackendError",
    "BalancingAlgorithm",
    "BatchedDataDict",
    "CPPlanning",
    "Communicator",
    "CostModel",
    "DcpackError",
    "DistributedDataLoader",
    "DistributedDatasetConfig",
    "ExternalStepSource",
    "GlobalBatchSampler",
    "InfeasibleError",
    "PackingConstraints",
    "PaddingRule",
    "PeerError",
    "Plan",
    "PlanError",
    "QuadraticCost",
    "RingCost",
    "SampleMetadata",
    "SlicedDataDict",
    "TPBroadcastDataLoader",
    "TensorFieldSpec",
    "Topology",
    "WorkloadCost",
    "balance",
    "build_distributed_dataloader",
    "get_backend",
    "pack",
    "plan",
    "run_ranks",
]
