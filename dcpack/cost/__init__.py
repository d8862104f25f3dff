"""Cost models: how long a rank works on a bin."""

from dcpack.cost.attention import AttentionPattern, Chunked, SlidingWindow, causal_pairs, full_pairs, get_attention
from dcpack.cost.base import CostModel
from dcpack.cost.devices import DEVICES, Device, get_device
from dcpack.cost.fitting import COEFFICIENTS, FitReport
from dcpack.cost.measured import MeasuredCost
from dcpack.cost.models import MODELS, TransformerModel, get_model
from dcpack.cost.presets import cost_to_json, get_cost
from dcpack.cost.quadratic import QuadraticCost
from dcpack.cost.ring import RingCost
from dcpack.cost.timings import BinTiming, StepRecorder, StepTiming
from dcpack.cost.transformer import TransformerCost

__all__ = [
    "COEFFICIENTS",
    "DEVICES",
    "MODELS",
    "AttentionPattern",
    "BinTiming",
    "Chunked",
    "CostModel",
    "Device",
    "FitReport",
    "MeasuredCost",
    "QuadraticCost",
    "RingCost",
    "SlidingWindow",
    "StepRecorder",
    "StepTiming",
    "TransformerCost",
    "TransformerModel",
    "causal_pairs",
    "cost_to_json",
    "full_pairs",
    "get_attention",
    "get_cost",
    "get_device",
    "get_model",
]
