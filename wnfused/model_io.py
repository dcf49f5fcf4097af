"""Inputs and outputs of models: tensors, and tuples, dicts and objects that contain them."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn


def arguments(example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's ``(args, kwargs)``: a tensor is the only argument, a tuple or list is args, a dict is kwargs.

    Tensors are cloned, because a model may write into its input.
    """
    example_input = _copied(example_input)
    if isinstance(example_input, Mapping):
        return (), dict(example_input)
    return (tuple(example_input), {}) if isinstance(example_input, (tuple, list)) else ((example_input,), {})


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_copied(item) for item in value)
    return value


def does_not_run(argument: str, value: Any, error: Exception, module: str = "") -> str:
    """The message for a model that raised ``error`` (in ``module``) when called with ``value``."""
    inside = f" in {module!r}" if module else ""
    return f"{argument}: the model does not run on it ({_shapes(value)}): {type(error).__name__}{inside}: {error}"


def _shapes(value: Any) -> str:
    found = [f"shape {list(t.shape)}" for t in tensors_in(value)]
    return ", ".join(found) or f"a {type(value).__name__} without tensors"


def tensors_in(value: Any, depth: int = 8) -> Iterator[Tensor]:
    """The tensors in nested containers and in plain objects that hold them, such as a dataclass of outputs."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, (list, tuple, set)):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)) and not callable(value):
        yield from tensors_in(vars(value), depth - 1)
