"""The operators under torch.library.opcheck: schemas, autograd, fake implementations and their strides."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import wnfused
from tests.support.compile_cases import some_samples
from tests.support.samples import BY_NAME, Sample
from wnfused.ops.schema import SCHEMAS

pytestmark = pytest.mark.usefixtures("_one_thread", "_compiled_afresh")

ALL_CHECKS = {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"}


def operator_arguments(sample: Sample, dtype: torch.dtype = torch.float32) -> tuple[str, list[Any]]:
    """The operator behind a sample's public function, and its arguments."""
    tensors: list[Any] = [t.detach().to(dtype).requires_grad_() for t in sample.tensors()]
    if sample.kind == "weight_norm":
        return "weight_norm", [*tensors, sample.dim, sample.eps]
    tensors += [None] * (4 - len(tensors))
    if sample.kind == "linear":
        return "linear", [*tensors, sample.dim, sample.eps, sample.relu]
    n = len(sample.v_shape) - 2

    def per_dimension(name: str, default: int) -> list[int]:
        value = sample.geometry.get(name, default)
        return [value] * n if isinstance(value, int) else list(value)

    return "convolution", [
        *tensors,
        per_dimension("stride", 1),
        per_dimension("padding", 0),
        per_dimension("dilation", 1),
        sample.kind == "transposed",
        per_dimension("output_padding", 0),
        sample.geometry.get("groups", 1),
        sample.dim,
        sample.eps,
        sample.relu,
    ]


def backward_arguments(name: str, arguments: list[Any], mask: list[bool]) -> list[Any]:
    y, norms = getattr(torch.ops.wnfused, name)(*arguments)
    dy = torch.randn_like(y)
    if name == "weight_norm":
        v, g, *options = arguments
        return [dy, v, g, norms, *options, mask]
    x, v, g, bias, *options, relu = arguments
    if name == "linear":
        options.append(bias is not None)
    return [dy, x, v, g, norms, y.detach() if relu else None, *options, mask]


def check(name: str, arguments: list[Any], overload: str = "default") -> None:
    results = opcheck(getattr(getattr(torch.ops.wnfused, name), overload), tuple(arguments))
    assert set(results) == ALL_CHECKS
    assert set(results.values()) == {"SUCCESS"}


def test_eight_operators() -> None:
    """There are no others: the tests below and those of test_model_weights.py cover all of them."""
    names = ("weight_norm", "linear", "convolution", "model_weights")
    assert set(SCHEMAS) == {f"{name}{end}" for name in names for end in ("", "_backward")}


@some_samples
def test_opcheck_forward(backend: str, sample: Sample) -> None:
    check(*operator_arguments(sample))


FEW = [BY_NAME[name] for name in ("weight_norm-middle", "linear-relu", "conv2d", "transposed1d-1-relu")]
few_samples = pytest.mark.parametrize("sample", FEW, ids=lambda s: s.name)


@few_samples
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_opcheck_other_dtypes(backend: str, sample: Sample, dtype: torch.dtype) -> None:
    name, arguments = operator_arguments(sample, dtype)
    with torch.no_grad():
        check(name, [t.detach() if isinstance(t, Tensor) else t for t in arguments])


@few_samples
def test_opcheck_backward(one_backend: None, sample: Sample) -> None:
    """Double backward, with inputs that require gradients."""
    name, arguments = operator_arguments(sample)
    check(f"{name}_backward", backward_arguments(name, arguments, [True] * (2 if name == "weight_norm" else 4)))


@few_samples
def test_opcheck_every_mask(backend: str, sample: Sample) -> None:
    name, arguments = operator_arguments(sample)
    arguments = [t.detach() if isinstance(t, Tensor) else t for t in arguments]
    for mask in itertools.product([False, True], repeat=2 if name == "weight_norm" else 4):
        outcome = opcheck(
            getattr(torch.ops.wnfused, f"{name}_backward").default,
            tuple(backward_arguments(name, arguments, list(mask))),
            test_utils=("test_schema", "test_faketensor"),
        )
        assert set(outcome.values()) == {"SUCCESS"}


def test_opcheck_python_overload() -> None:
    """The overload that always selects the backend in Python passes the same checks."""
    name, arguments = operator_arguments(BY_NAME["linear-relu"])
    with wnfused.backend("torch"):
        check(name, arguments, "python")
        check(f"{name}_backward", backward_arguments(name, arguments, [True] * 4), "python")


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "channels last": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1),
    "first two swapped": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "every second element": lambda t: torch.stack([t, t - 9], dim=-1)[..., 0],
    "expanded": lambda t: t[:1].expand_as(t),
}


@pytest.mark.parametrize("v_layout", LAYOUTS)
@pytest.mark.parametrize("x_layout", LAYOUTS)
@pytest.mark.parametrize(
    "sample", ["linear-more-rows", "linear-1", "conv1d", "conv2d", "conv2d-1", "transposed1d", "conv3d"]
)
def test_fake_implementation_knows_the_strides(backend: str, sample: str, x_layout: str, v_layout: str) -> None:
    """The compiler plans memory by the strides of the fake implementation and fails if the kernels return others."""
    name, arguments = operator_arguments(BY_NAME[sample])
    arguments = [t.detach() if isinstance(t, Tensor) else t for t in arguments]
    arguments[0], arguments[1] = LAYOUTS[x_layout](arguments[0]), LAYOUTS[v_layout](arguments[1])
    opcheck(getattr(torch.ops.wnfused, name).default, tuple(arguments), test_utils="test_faketensor")
    backward = backward_arguments(name, arguments, [True] * 4)
    for dy in (backward[0], torch.ones(()).expand_as(backward[0])):
        backward[0] = dy
        outcome = opcheck(
            getattr(torch.ops.wnfused, f"{name}_backward").default, tuple(backward), test_utils="test_faketensor"
        )
        assert outcome == {"test_faketensor": "SUCCESS"}
