"""The operators' schemas and fake (shape-only) implementations, defined once for every backend.

``norms`` has the shape of g and the dtype of statistics. In the backward operators ``y`` is the saved output if a ReLU
was fused, ``biased`` says whether y includes a bias (without one, dg can be computed from y), and ``mask`` selects the
requested gradients; the others are returned undefined.
``model_weights`` is ``weight_norm`` of many weights of one dtype: a dim of -1 means None, and ``norms`` holds the
norms of all of them in one dimension. Its backward returns only the requested gradients.
Each operator has a second overload, ``.python``, which always selects the backend in Python: the native library
replaces the default overload for CPU tensors and calls ``.python`` when another backend is selected.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from wnfused.ops import reference
from wnfused.ops.arguments import CHECKS

_GEOMETRY = "int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups"
_SAVED = "Tensor x, Tensor v, Tensor g, Tensor norms, Tensor? y"

SCHEMAS = {
    "weight_norm": "(Tensor v, Tensor g, int? dim, float eps) -> (Tensor w, Tensor norms)",
    "weight_norm_backward": "(Tensor dw, Tensor v, Tensor g, Tensor norms, int? dim, float eps, bool[2] mask)"
    " -> (Tensor dv, Tensor dg)",
    "linear": "(Tensor x, Tensor v, Tensor g, Tensor? bias, int? dim, float eps, bool relu)"
    " -> (Tensor y, Tensor norms)",
    "linear_backward": f"(Tensor dy, {_SAVED}, int? dim, float eps, bool biased, bool[4] mask)"
    " -> (Tensor dx, Tensor dv, Tensor dg, Tensor db)",
    "convolution": f"(Tensor x, Tensor v, Tensor g, Tensor? bias, {_GEOMETRY}, int? dim, float eps, bool relu)"
    " -> (Tensor y, Tensor norms)",
    "convolution_backward": f"(Tensor dy, {_SAVED}, {_GEOMETRY}, int? dim, float eps, bool[4] mask)"
    " -> (Tensor dx, Tensor dv, Tensor dg, Tensor db)",
    "model_weights": "(Tensor[] v, Tensor[] g, int[] dims, float[] eps, ScalarType dtype)"
    " -> (Tensor[] w, Tensor norms)",
    "model_weights_backward": "(Tensor[] dw, Tensor[] v, Tensor[] g, Tensor norms, int[] dims, float[] eps,"
    " bool[] want_v, bool[] want_g) -> (Tensor[] dv, Tensor[] dg)",
}

LIBRARY = Library("wnfused", "DEF")
for _name, _signature in SCHEMAS.items():
    LIBRARY.define(_name + _signature, tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.define(f"{_name}.python{_signature}", tags=torch.Tag.pt2_compliant_tag)


def _fake_norms(v: Tensor, g: Tensor) -> Tensor:
    return g.new_empty(g.shape, dtype=reference.opmath(v.dtype))


def _fake_gradients(
    dy: Tensor, dx: Tensor | None, v: Tensor, g: Tensor, channels: int, mask: list[bool]
) -> reference.Gradients:
    return (
        dx if mask[0] else None,
        torch.empty_like(v) if mask[1] else None,
        torch.empty_like(g) if mask[2] else None,
        dy.new_empty(channels, dtype=reference.opmath(dy.dtype)) if mask[3] else None,
    )


def _fake_weight_norm(v, g, dim, eps):
    return torch.empty_like(v), _fake_norms(v, g)


def _fake_weight_norm_backward(dw, v, g, norms, dim, eps, mask):
    return torch.empty_like(v) if mask[0] else None, torch.empty_like(g) if mask[1] else None


def _fake_linear(x, v, g, bias, dim, eps, relu):
    return x.new_empty((*x.shape[:-1], v.shape[0])), _fake_norms(v, g)


def _fake_linear_backward(dy, x, v, g, norms, y, dim, eps, biased, mask):
    return _fake_gradients(dy, x.new_empty(x.shape), v, g, v.shape[0], mask)


def _fake_convolution(x, v, g, bias, stride, padding, dilation, transposed, output_padding, groups, dim, eps, relu):
    w = torch.empty_like(v, dtype=x.dtype)
    y = torch.ops.aten.convolution(x, w, None, stride, padding, dilation, transposed, output_padding, groups)
    return y, _fake_norms(v, g)


def _fake_convolution_backward(
    dy, x, v, g, norms, y, stride, padding, dilation, transposed, output_padding, groups, dim, eps, mask
):
    return _fake_gradients(dy, torch.empty_like(x), v, g, dy.shape[1], mask)


def _fake_model_weights(v, g, dims, eps, dtype):
    norms = g[0].new_empty(sum(t.numel() for t in g), dtype=reference.opmath(v[0].dtype))
    return [torch.empty_like(t, dtype=dtype) for t in v], norms


def _fake_model_weights_backward(dw, v, g, norms, dims, eps, want_v, want_g):
    dv = [torch.empty_like(t) for t, wanted in zip(v, want_v, strict=True) if wanted]
    return dv, [torch.empty_like(t) for t, wanted in zip(g, want_g, strict=True) if wanted]


_FAKES: dict[str, Callable[..., Any]] = {
    "weight_norm": _fake_weight_norm,
    "weight_norm_backward": _fake_weight_norm_backward,
    "linear": _fake_linear,
    "linear_backward": _fake_linear_backward,
    "convolution": _fake_convolution,
    "convolution_backward": _fake_convolution_backward,
    "model_weights": _fake_model_weights,
    "model_weights_backward": _fake_model_weights_backward,
}


def _checked_fake(name: str) -> Callable[..., Any]:
    check, fake = CHECKS[name], _FAKES[name]

    def checked(*args: Any) -> Any:
        check(*args)
        return fake(*args)

    return checked


for _name in SCHEMAS:
    torch.library.register_fake(f"wnfused::{_name}", _checked_fake(_name), lib=LIBRARY)
    torch.library.register_fake(f"wnfused::{_name}.python", _checked_fake(_name), lib=LIBRARY)
