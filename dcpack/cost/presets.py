"""Cost models by name or from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dcpack.cost.attention import attention_name, get_attention
from dcpack.cost.base import CostModel
from dcpack.cost.checks import check_keys
from dcpack.cost.devices import DEVICES, Device, get_device
from dcpack.cost.measured import MeasuredCost
from dcpack.cost.models import MODELS, TransformerModel, get_model
from dcpack.cost.quadratic import QuadraticCost
from dcpack.cost.ring import RingCost
from dcpack.cost.transformer import TransformerCost
from dcpack.errors import ArgumentError

__all__ = ["cost_to_json", "get_cost"]


def get_cost(spec: str | Path | Mapping[str, Any]) -> CostModel:
    """Return the cost model that `spec` describes; what the command line's ``--cost`` takes.

    Args:
        spec: one of

            - ``"ring"`` or ``"quadratic"``, with default coefficients,
            - ``"MODEL@DEVICE"``, names of `MODELS` and `DEVICES`: a `TransformerCost` with causal attention,
            - the path of a JSON file (it ends in ``.json``), or the mapping that such a file holds:
              ``{"ring": {...}}``, ``{"quadratic": {}}``, ``{"measured": {...}}`` with the arguments of those models, or
              the arguments of `TransformerCost`, ``{"model": ..., "device": ..., "attention": ..., ...}``, where
              `model` and `device` are names, or mappings of the arguments of `TransformerModel` and `Device`.

    Raises:
        ArgumentError: an unknown name (the known ones are listed), a file that cannot be read, or a model that cannot
            be; names the file.

    Example:
        >>> get_cost("llama3-8b@h100").unit, get_cost("ring").unit
        ('s', 'cost')
        >>> get_cost({"model": "llama3-8b", "device": "h100", "attention": "full"}).columns([3]).tolist()
        [[3.0, 9.0]]
        >>> get_cost("rings")
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: unknown cost 'rings'; known are 'ring', 'quadratic', 'MODEL@DEVICE' (models \
llama2-7b, llama2-13b, llama2-70b, llama3-8b, llama3-70b, llama3-405b, qwen3-8b, qwen3-32b, qwen3-30b-a3b, \
qwen3-235b-a22b, mixtral-8x7b, deepseek-v3, gpt3-175b; devices h100, h200, a100, ascend-910b, tpu-v5e, tpu-v5p) and \
the path of a .json file
    """
    if isinstance(spec, Mapping):
        return _from_mapping(spec)
    if isinstance(spec, Path) or (isinstance(spec, str) and spec.endswith(".json")):
        return _from_file(Path(spec))
    if isinstance(spec, str) and spec in ("ring", "quadratic"):
        return _from_mapping({spec: {}})
    if isinstance(spec, str) and spec.count("@") == 1:
        model, device = spec.split("@")
        return TransformerCost(model=get_model(model), device=get_device(device))
    raise ArgumentError(
        f"unknown cost {spec!r}; known are 'ring', 'quadratic', 'MODEL@DEVICE' (models {', '.join(MODELS)}; devices "
        f"{', '.join(DEVICES)}) and the path of a .json file"
    )


def cost_to_json(cost: CostModel) -> str:
    """Return `cost` as the JSON that `get_cost` reads.

    Args:
        cost: a model of this package.

    Raises:
        ArgumentError: a cost model, or an attention pattern, of the user's own.

    Example:
        >>> cost = get_cost("llama3-8b@h100")
        >>> get_cost(json.loads(cost_to_json(cost))) == cost
        True
    """
    if isinstance(cost, TransformerCost):
        values = {item.name: getattr(cost, item.name) for item in fields(cost)}
        named = attention_name(get_attention(cost.attention))
        mapping: dict[str, Any] = {
            **values,
            "model": asdict(cost.model),
            "device": asdict(cost.device),
            "attention": named,
        }
    elif isinstance(cost, RingCost):
        mapping = {"ring": asdict(cost)}
    elif isinstance(cost, QuadraticCost):
        mapping = {"quadratic": {}}
    elif isinstance(cost, MeasuredCost):
        mapping = {"measured": cost.to_dict()}
    else:
        raise ArgumentError(f"cost {cost!r} is a cost model of your own and cannot be written to a file")
    return json.dumps(mapping, indent=2)


def _from_file(path: Path) -> CostModel:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return _from_mapping(values)
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # text that is no JSON, and errors of ours
        raise ArgumentError(f"{path}: {error}") from error


def _ring(values: Any) -> RingCost:
    return RingCost(**check_keys("ring", values, [item.name for item in fields(RingCost)]))


def _quadratic(values: Any) -> QuadraticCost:
    return QuadraticCost(**check_keys("quadratic", values, ()))


_WRAPPED: Mapping[str, Callable[[Any], CostModel]] = {
    "ring": _ring,
    "quadratic": _quadratic,
    "measured": MeasuredCost.from_dict,
}


def _from_mapping(values: Any) -> CostModel:
    if not isinstance(values, Mapping):
        raise ArgumentError(f"a cost must be a mapping, got {values!r}")
    for name, build in _WRAPPED.items():
        if name in values:
            return build(check_keys("cost", values, [name])[name])
    checked = check_keys("cost", values, [item.name for item in fields(TransformerCost)])
    if missing := [repr(name) for name in ("model", "device") if name not in checked]:
        known = ", ".join(map(repr, _WRAPPED))
        raise ArgumentError(f"cost needs {' and '.join(missing)}, or one of {known}")
    checked["model"] = _named_or_built("model", checked["model"], get_model, TransformerModel)
    checked["device"] = _named_or_built("device", checked["device"], get_device, Device)
    return TransformerCost(**checked)


def _named_or_built(name: str, value: Any, by_name: Callable[[str], Any], kind: type[Any]) -> Any:
    """Return what a name stands for, or an object of `kind` from the mapping of its arguments."""
    if isinstance(value, str):
        return by_name(value)
    arguments = check_keys(name, value, [item.name for item in fields(kind)])
    try:
        return kind(**arguments)
    except TypeError as error:  # arguments that are missing
        raise ArgumentError(f"{name}: {error}") from error
