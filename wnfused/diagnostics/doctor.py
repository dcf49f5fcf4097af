"""One page on a model's health: roles and gains, signal, dead rows, dtypes and layouts, what fusing would save."""

import ast
import copy
import importlib
import io
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from wnfused import torch_norms
from wnfused.convert import convert
from wnfused.diagnostics.signal import signal_report
from wnfused.init.explain import explain
from wnfused.ops.reference import row_norms
from wnfused.weight_normalized import WeightNormalized


class BadModel(ValueError):
    """The model named on the command line cannot be made; the message says why."""


def load(spec: str) -> nn.Module:
    """The model behind ``package.module:name`` or ``package.module:name(arguments)``, literals only as arguments."""
    path, colon, rest = spec.partition(":")
    if not colon or not path or not rest:
        raise BadModel(f"expected package.module:name or package.module:name(arguments), got {spec!r}")
    name, args, kwargs = _call(rest)
    try:
        found = getattr(importlib.import_module(path), name)
    except ImportError as error:
        raise BadModel(f"{path!r} cannot be imported: {error}") from error
    except AttributeError:
        raise BadModel(f"{path!r} has no {name!r}") from None
    model = found if isinstance(found, nn.Module) else found(*args, **kwargs)
    if not isinstance(model, nn.Module):
        raise BadModel(f"{spec!r} is a {type(model).__name__}, not an nn.Module")
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


def examine(model: nn.Module, example: Tensor) -> str:
    """The page."""
    sections = [
        ("Layers", _layers(model)),
        ("Roles and gains", _roles(model, example)),
        ("Signal", _signal(model, example)),
        ("Dead rows", _dead_rows(model)),
        ("Dtypes and layouts", _problems(model, example)),
        ("What fusing would save", _fusing(model)),
    ]
    return "\n\n".join(f"{title}\n{'-' * len(title)}\n{text}" for title, text in sections)


def weight_normalized(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor, Tensor, int | None]]:
    """(name, module, g, v, dim) of every weight-normalized layer, wnfused's and torch's."""
    for name, module in model.named_modules():
        if isinstance(module, WeightNormalized):
            yield name, module, module.weight_g, module.weight_v, module.dim
            continue
        for norm in torch_norms.norms_on(module):
            g, v = torch_norms.gain_and_direction(module, norm)
            if g is not None and v is not None:
                yield name, module, g, v, norm.dim_for(v.ndim)


def _layers(model: nn.Module) -> str:
    own = sum(isinstance(m, WeightNormalized) for m in model.modules())
    torchs = sum(bool(torch_norms.norms_on(m)) for m in model.modules())
    parameters = sum(p.numel() for p in model.parameters())
    return f"{own} wnfused layers, {torchs} under torch's weight_norm, {parameters:,} parameters in all"


def _roles(model: nn.Module, example: Tensor) -> str:
    try:
        return explain(model, example, file=io.StringIO()).rstrip()
    except ValueError as error:
        return f"not known: {error}"


def _signal(model: nn.Module, example: Tensor) -> str:
    names = [name for name, *_ in weight_normalized(model)]
    if not names:
        return "no weight-normalized layers"
    report = signal_report(model, example, modules=names, generator=torch.Generator().manual_seed(0))
    return f"{report.table()}\n{_verdict(report.layers[-1].forward_mean, report.layers[0].backward_mean)}"


def _verdict(forward: float, backward: float) -> str:
    def word(ratio: float) -> str:
        return "vanishes" if ratio < 0.05 else "explodes" if ratio > 20 else "is kept" if ratio == ratio else "is lost"

    return (
        f"The signal {word(forward)} forward ({forward:.3g}); the gradient {word(backward)} backward ({backward:.3g})."
    )


def _dead_rows(model: nn.Module) -> str:
    lines = []
    for name, _, g, v, dim in weight_normalized(model):
        zero_v = int((row_norms(v.detach(), dim) == 0).sum())
        zero_g = int((g.detach() == 0).sum())
        if zero_v or zero_g:
            lines.append(f"{name}: {zero_v} rows with v = 0, {zero_g} with g = 0, of {g.numel()}")
    return "\n".join(lines) or "none"


def _problems(model: nn.Module, example: Tensor) -> str:
    lines = []
    for name, _, g, v, _ in weight_normalized(model):
        if v.dtype in (torch.float16, torch.bfloat16):
            lines.append(f"{name}: weights in {v.dtype}: small updates round away; train in float32 under autocast")
        if g.dtype != v.dtype:
            lines.append(f"{name}: g is {g.dtype}, v is {v.dtype}: the fastest kernels want one dtype")
        if v.is_cuda and v.ndim == 4 and v.is_contiguous() and v.stride(1) != 1:
            lines.append(f"{name}: contiguous weight on a GPU: channels-last is read in wider pieces")
        if not v.is_contiguous() and not v.is_non_overlapping_and_dense():  # type: ignore[attr-defined]
            lines.append(f"{name}: v has gaps or overlaps in memory and is copied on every call")
    if example.ndim == 4 and example.is_cuda and example.is_contiguous():
        lines.append("input: contiguous images on a GPU: channels-last runs without copies")
    return "\n".join(lines) or "none"


def _fusing(model: nn.Module) -> str:
    """What convert would do, tried on a copy; and the bytes torch's norms write on every forward."""
    report = convert(copy.deepcopy(model))
    kept = sum(
        v.numel() * v.element_size()
        for _, m, _, v, _ in weight_normalized(model)
        if not isinstance(m, WeightNormalized)
    )
    if not report.converted and not report.skipped:
        return "nothing: no layer is under torch's weight_norm"
    saved = f"a second copy of the weights, {kept / 1e6:.1f} MB written on every forward and kept for backward"
    return f"wnfused.convert: {report}\nsaves {saved}"
