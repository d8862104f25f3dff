"""dcpack: exact and fast packing, balancing and dynamic context parallelism for variable-length sequences."""

from dcpack.api import balance, pack, plan
from dcpack.batched_data_dict import BatchedDataDict, SlicedDataDict
from dcpack.comm import Backend, Communicator, get_backend, run_ranks
from dcpack.cost import CostModel, QuadraticCost, RingCost
from dcpack.errors import ArgumentError, BackendError, DcpackError, InfeasibleError, PeerError, PlanError
from dcpack.loader import TPBroadcastDataLoader
from dcpack.padding import PaddingRule
from dcpack.plans import Plan
from dcpack.topology import Topology

__all__ = [
    "ArgumentError",
    "Backend",
    "BackendError",
    "BatchedDataDict",
    "Communicator",
    "CostModel",
    "DcpackError",
    "InfeasibleError",
    "PaddingRule",
    "PeerError",
    "Plan",
    "PlanError",
    "QuadraticCost",
    "RingCost",
    "SlicedDataDict",
    "TPBroadcastDataLoader",
    "Topology",
    "balance",
    "get_backend",
    "pack",
    "plan",
    "run_ranks",
]
