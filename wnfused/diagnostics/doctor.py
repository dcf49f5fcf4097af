"""A one-page report on a model: roles and gains, signal, dead rows, dtypes and layouts, what fusing would save."""

import ast
import importlib
import io
from typing import Any

import torch
from torch import Tensor, nn

from wnfused.diagnostics.signal import signal_report
from wnfused.formatting import folded
from wnfused.init.explain import explain
from wnfused.init.layers import Layer, find_layers
from wnfused.model_io import tensors_in
from wnfused.nn.base import WeightNormalized
from wnfused.ops.reference import row_norms
from wnfused.surgery.convert import plan_of_convert
from wnfused.surgery.lost_initialization import lost_initializations


class BadModel(ValueError):
    """The model cannot be created, or has nothing to examine; the message says why."""


def load(spec: str) -> nn.Module:
    """Load the model ``package.module:name`` or ``package.module:name(arguments)``; the arguments are literals."""
    path, colon, rest = spec.partition(":")
    if not colon or not path or not rest:
        raise BadModel(f"expected package.module:name or package.module:name(arguments), got {spec!r}")
    name, args, kwargs = _call(rest)
    try:
        module = importlib.import_module(path)
    except Exception as error:  # the user's module may raise anything
        raise BadModel(f"{path!r} cannot be imported: {_first_line(error)}") from error
    if not hasattr(module, name):
        raise BadModel(f"{path!r} has no {name!r}")
    found = getattr(module, name)
    try:
        model = found if isinstance(found, nn.Module) else found(*args, **kwargs)
    except Exception as error:
        raise BadModel(f"{spec!r} cannot be created: {_first_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise BadModel(f"{spec!r}: expected an nn.Module, got {type(model).__name__}")
    return model


def _call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    try:
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError
        arguments = [ast.literal_eval(a) for a in node.args]
        return node.func.id, arguments, {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except (SyntaxError, ValueError):
        raise BadModel(f"expected a name, or a call with literals as arguments, got {text!r}") from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def examine(model: nn.Module, example: Any) -> str:
    """The report as text of at most 80 columns.

    ``example`` is a tensor, a tuple of arguments or a dict of keyword arguments. It is moved to the device of the
    weights, and floating-point tensors are cast to their dtype.
    """
    try:
        layers, others = find_layers("doctor", model)
    except ValueError as error:
        raise BadModel(str(error).removeprefix("doctor: ")) from error
    example = _as_weights(example, layers[0].v)
    errors: list[ValueError] = []
    sections = [
        ("Layers", _layers(model, layers, others)),
        ("Roles and gains", _roles(model, example, errors)),
        ("Signal", _signal(model, example, layers, errors)),
        ("Dead rows", _dead_rows(layers)),
        ("Initialization", "\n".join(lost_initializations(model)) or "no sign of a lost initialization"),
        ("Dtypes and layouts", _problems(layers, example)),
        ("What fusing would save", _fusing(model, layers)),
    ]
    if len(errors) == 2:  # both sections that run the model failed, so the example does not fit
        raise errors[0]
    return "\n\n".join("\n".join([title, "-" * len(title), *folded(text)]) for title, text in sections)


def _as_weights(example: Any, weight: Tensor) -> Any:
    if isinstance(example, Tensor):
        return example.to(weight.device, weight.dtype if example.is_floating_point() else None)
    if isinstance(example, dict):
        return {name: _as_weights(value, weight) for name, value in example.items()}
    return tuple(_as_weights(value, weight) for value in example) if isinstance(example, (tuple, list)) else example


def _layers(model: nn.Module, layers: list[Layer], others: list[str]) -> str:
    own = sum(isinstance(layer.module, WeightNormalized) for layer in layers)
    parameters = sum(p.numel() for p in model.parameters())
    counts = f"{own} wnfused layers, {len(layers) - own} under torch's weight_norm, {parameters:,} parameters in total"
    return counts + "".join(f"\nnot examined: {other}" for other in others)


def _roles(model: nn.Module, example: Any, errors: list[ValueError]) -> str:
    try:
        table = explain(model, example, file=io.StringIO()).rstrip()
        return f"{table}\nγ and g are the values that wnfused.init.robust_ would set."
    except ValueError as error:
        errors.append(error)
        return f"unknown: {error}"


def _signal(model: nn.Module, example: Any, layers: list[Layer], errors: list[ValueError]) -> str:
    names = [layer.name for layer in layers]
    try:
        report = signal_report(model, example, modules=names, generator=torch.Generator().manual_seed(0))
    except ValueError as error:
        errors.append(error)
        return f"not measured: {error}"
    return f"{report.table()}\n{_verdict(report.layers[-1].forward_mean, report.layers[0].backward_mean)}"


def _verdict(forward: float, backward: float) -> str:
    def word(ratio: float) -> str:
        return "vanishes" if ratio < 0.05 else "explodes" if ratio > 20 else "is kept" if ratio == ratio else "is NaN"

    return (
        f"The signal {word(forward)} forward ({forward:.3g}); the gradient {word(backward)} backward ({backward:.3g})."
    )


def _dead_rows(layers: list[Layer]) -> str:
    lines = []
    for layer in layers:
        zero_v = int((row_norms(layer.v.detach(), layer.dim) == 0).sum())
        zero_g = int((layer.g.detach() == 0).sum())
        if zero_v or zero_g:
            lines.append(f"{layer.name}: v = 0 in {zero_v} and g = 0 in {zero_g} of {layer.g.numel()} rows")
    return "\n".join(lines) or "none"


def _problems(layers: list[Layer], example: Any) -> str:
    lines = []
    for layer in layers:
        name, g, v = layer.name, layer.g, layer.v
        if v.dtype in (torch.float16, torch.bfloat16):
            lines.append(f"{name}: weights in {v.dtype} round small updates away; train in float32 under autocast")
        if g.dtype != v.dtype:
            lines.append(f"{name}: g is {g.dtype}, v is {v.dtype}; the fastest kernels need equal dtypes")
        if v.is_cuda and v.ndim == 4 and v.is_contiguous() and v.stride(1) != 1:
            lines.append(f"{name}: contiguous weight on a GPU; channels-last allows wider loads")
        if not v.is_contiguous() and not v.is_non_overlapping_and_dense():  # type: ignore[attr-defined]
            lines.append(f"{name}: v has gaps or overlaps in memory, so every call copies it")
    if any(t.ndim == 4 and t.is_cuda and t.is_contiguous() for t in tensors_in(example)):
        lines.append("input: contiguous images on a GPU; channels-last avoids copies")
    return "\n".join(lines) or "none"


def _fusing(model: nn.Module, layers: list[Layer]) -> str:
    """What convert would do, and the bytes that torch's norms write on every forward."""
    report, _ = plan_of_convert(model)
    if not report.converted and not report.skipped:
        return "nothing: no layer is under torch's weight_norm"
    fused = set(report.converted)
    copies = sum(layer.v.numel() * layer.v.element_size() for layer in layers if layer.name in fused)
    saved = f"a second copy of the weights, {copies / 1e6:.1f} MB written on every forward and kept for backward"
    return f"wnfused.convert would report: {report}\nand save {saved}"
