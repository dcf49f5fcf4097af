"""Every argument of every registered operator is checked on every path of a call.

The public functions check their arguments. Exported graphs, AOTInductor and C++ callers call ``torch.ops.wnfused``
directly, where a wrong shape must raise an error that names the argument and must never read past a tensor's end.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

import wnfused
from wnfused.ops import reference

MESSAGE = r"^wnfused::{}: {}: "
GEOMETRY: dict[str, Any] = {
    "stride": [1, 1],
    "padding": [1, 1],
    "dilation": [1, 1],
    "transposed": False,
    "output_padding": [0, 0],
    "groups": 1,
}
NORM = {"dim": 0, "eps": 0.0}


def good(name: str) -> dict[str, Any]:
    """Valid arguments of an operator by name, in its order."""
    n, tensors = 6, {"weight_norm": (6, 4), "linear": (6, 4), "convolution": (6, 4, 3, 3)}
    kind = name.removesuffix("_backward")
    v = torch.randn(tensors[kind])
    g = torch.rand(n, *[1] * (v.ndim - 1))
    x = {"weight_norm": None, "linear": torch.randn(3, 4), "convolution": torch.randn(2, 4, 5, 5)}[kind]
    dy = {"weight_norm": torch.randn(6, 4), "linear": torch.randn(3, 6), "convolution": torch.randn(2, 6, 5, 5)}[kind]
    options = {**(GEOMETRY if kind == "convolution" else {}), **NORM}
    norms = reference.row_norms(v, 0)
    if name == "weight_norm":
        return {"v": v, "g": g, **options}
    if name == "weight_norm_backward":
        return {"dw": dy, "v": v, "g": g, "norms": norms, **options, "mask": [True, True]}
    if name == kind:
        return {"x": x, "v": v, "g": g, "bias": torch.randn(n), **options, "relu": False}
    biased = {"biased": True} if kind == "linear" else {}
    saved = {"x": x, "v": v, "g": g, "norms": norms, "y": dy.clone()}
    return {"dy": dy, **saved, **options, **biased, "mask": [True] * 4}


OPERATORS = [f"{kind}{way}" for kind in ("weight_norm", "linear", "convolution") for way in ("", "_backward")]
LISTS = ["model_weights", "model_weights_backward"]
TENSORS = [(name, key) for name in OPERATORS for key, value in good(name).items() if isinstance(value, Tensor)]


def good_list(name: str) -> dict[str, Any]:
    """Valid arguments of ``model_weights``: three weights, one with a norm over all of it."""
    shapes, dims = [(6, 4), (4, 3, 2), (5, 7)], [0, 1, -1]
    v = [torch.randn(shape) for shape in shapes]
    g = [torch.rand(6, 1), torch.rand(1, 3, 1), torch.rand(())]
    eps = [0.0, 1e-6, 0.0]
    if name == "model_weights":
        return {"v": v, "g": g, "dims": dims, "eps": eps, "dtype": torch.float32}
    dw, wanted = [torch.randn(shape) for shape in shapes], {"want_v": [True] * 3, "want_g": [True, False, True]}
    return {"dw": dw, "v": v, "g": g, "norms": torch.rand(10), "dims": dims, "eps": eps, **wanted}


def call_native(name: str, arguments: dict[str, Any]) -> Any:
    with wnfused.backend("native"):
        return getattr(torch.ops.wnfused, name)(*arguments.values())


def call_python(name: str, arguments: dict[str, Any]) -> Any:
    with wnfused.backend("torch"):
        return getattr(torch.ops.wnfused, name)(*arguments.values())


def call_recorded(name: str, arguments: dict[str, Any]) -> Any:
    """Call as under ``create_graph``, where a backward operator is evaluated by its plain formula."""

    def record(t: Tensor) -> Tensor:
        return t.detach().requires_grad_() if t.is_floating_point() else t

    return call_native(name, tree_map_only(Tensor, record, arguments))


def call_fake(name: str, arguments: dict[str, Any]) -> Any:
    with FakeTensorMode() as mode:
        fakes = tree_map_only(Tensor, mode.from_tensor, arguments)
        return getattr(torch.ops.wnfused, name)(*fakes.values())


DOORS = [call_native, call_python, call_recorded, call_fake]


def refused(name: str, key: str, value: Any, named: str | None = None) -> None:
    """Every path raises an error that names the argument, or ``named`` if another argument is at fault."""
    arguments = {**(good_list(name) if name in LISTS else good(name)), key: value}
    for door in DOORS:
        with pytest.raises((ValueError, TypeError), match=MESSAGE.format(name, named or key)):
            door(name, arguments)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("door", DOORS)
def test_good_arguments_pass(name: str, door: Callable[..., Any]) -> None:
    for result in door(name, good(name)):
        assert isinstance(result, Tensor)


@pytest.mark.parametrize(("name", "key"), TENSORS)
def test_tensors_of_another_dtype(name: str, key: str) -> None:
    t = good(name)[key]
    refused(name, key, t.to(torch.int64))
    refused(name, key, t.to(torch.complex64))
    # With v in float64 the other arguments do not match: the next one is named.
    refused(name, key, t.double(), named="g" if key == "v" else None)


@pytest.mark.parametrize(("name", "key"), [pair for pair in TENSORS if pair[1] in ("norms", "dy", "y")])
def test_saved_tensors_in_the_dtypes_of_the_forward(name: str, key: str) -> None:
    refused(name, key, good(name)[key].bfloat16())


@pytest.mark.parametrize(("name", "key"), TENSORS)
def test_tensors_of_another_shape(name: str, key: str) -> None:
    t = good(name)[key]
    blame = {"v": "(v|g|x|dw)", "x": "(x|dy)"}.get(key, key)
    refused(name, key, t[:, :-1] if key == "x" else t[:-1], named=blame)
    if (name, key) != ("linear", "x"):  # it may have any number of batch dimensions
        refused(name, key, t[None, None, None, None], named=blame)
    refused(name, key, t.new_ones(()), named="(v|g|dim|x)" if key == "v" else blame)
    if key in ("g", "norms"):
        refused(name, key, t.new_ones([1] * t.ndim))
        refused(name, key, t.flatten())


@pytest.mark.parametrize("name", OPERATORS)
def test_dim_and_eps(name: str) -> None:
    for dim in (-1, 2 if "convolution" not in name else 4, 2**40):
        refused(name, "dim", dim)
    refused(name, "dim", None, named="g")
    for eps in (-1.0, float("inf"), float("nan"), 1e39):  # 1e39: finite, but not in float32, the dtype of the norms
        refused(name, "eps", eps)


@pytest.mark.parametrize("name", [name for name in OPERATORS if name.endswith("_backward")])
def test_masks_of_another_length(name: str) -> None:
    mask = good(name)["mask"]
    for value in ([], mask[1:], [*mask, True]):
        for door in DOORS:
            with pytest.raises(RuntimeError, match="fixed-size array|mask: expected"):
                door(name, {**good(name), "mask": value})


@pytest.mark.parametrize("name", ["convolution", "convolution_backward"])
def test_geometry(name: str) -> None:
    for key, least in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)):
        for value in ([], [1], [1, 1, 1], [least - 1, 1], [1, 2**31], [-(2**63), 1], [1, 2**63 - 5]):
            refused(name, key, value)
    for groups in (0, -1, 4, 2**62):
        refused(name, "groups", groups)
    refused(name, "groups", 2, named="x")
    refused(name, "output_padding", [1, 0])
    refused(name, "dilation", [4, 1], named="x")  # the output would be empty
    refused(name, "dilation", [2**31 - 1] * 2, named="x")


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("door", DOORS)
def test_good_lists_pass(name: str, door: Callable[..., Any]) -> None:
    assert door(name, good_list(name))


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_another_length(name: str) -> None:
    first = next(iter(good_list(name)))
    for key, value in good_list(name).items():
        if isinstance(value, list):
            for wrong in ([], value[:-1], [*value, value[0]]):
                empty_v = key == "v" and not wrong
                others_named = key in ("v", first) and not empty_v
                refused(name, key, wrong, named="(g|dw)" if others_named else None)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("key", ["v", "g", "dw"])
def test_one_wrong_tensor_of_a_list(name: str, key: str) -> None:
    given = good_list(name)
    for place, t in enumerate(given.get(key, [])):
        wrong = [t.to(torch.int64), t.to(torch.complex64), t.to_sparse()]
        wrong += [t[None, None]] if key == "g" or given["dims"][place] != -1 else []  # a norm over all of v fits any v
        for one in wrong:
            named = f"weight {place}: ({key}|{'g|dw' if key == 'v' else key})"
            refused(name, key, [*given[key][:place], one, *given[key][place + 1 :]], named=named)


@pytest.mark.parametrize("name", LISTS)
def test_numbers_of_lists(name: str) -> None:
    given = good_list(name)
    for wrong in (-2, 2, 2**62, -(2**63)):
        refused(name, "dims", [wrong, *given["dims"][1:]], named="weight 0: dim")
    for wrong in (-1.0, float("inf"), float("nan"), 1e39):
        refused(name, "eps", [*given["eps"][:2], wrong], named="weight 2: eps")
    if "dtype" in given:
        for dtype in (torch.int32, torch.complex64, torch.bool, torch.float64):
            refused(name, "dtype", dtype)
    else:
        for norms in (torch.rand(9), torch.rand(10, 1), torch.rand(10).double(), torch.rand(10).bfloat16()):
            refused(name, "norms", norms)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_none_for_the_first_tensor(name: str, backend: str) -> None:
    """The backend is selected by the first tensor's device. ``.python`` is the default overload without a library."""
    first = next(iter(good(name)))
    for overload in ("default", "python"):
        operator = getattr(getattr(torch.ops.wnfused, name), overload)
        with wnfused.backend(backend), pytest.raises(TypeError, match=MESSAGE.format(name, first)):
            operator(*{**good(name), first: None}.values())


@pytest.mark.parametrize(("name", "key"), TENSORS)
def test_a_sparse_tensor_among_meta_tensors(name: str, key: str) -> None:
    """The argument is named, not the backend, which cannot run on meta tensors either."""
    arguments = {k: t.to_sparse() if k == key else t.to("meta") if isinstance(t, Tensor) else t
                 for k, t in good(name).items()}  # fmt: skip
    with pytest.raises((ValueError, TypeError), match=r"^wnfused::" + name + ": [a-z]+: expected"):
        call_native(name, arguments)


def test_shapes_that_wrote_past_the_heap() -> None:
    for door in DOORS:
        with pytest.raises(ValueError, match="wnfused::linear: g: "):
            door("linear", {**good("linear"), "v": torch.randn(600, 8), "g": torch.ones(1, 1), "x": torch.randn(4, 8)})
        with pytest.raises(ValueError, match="wnfused::weight_norm: g: "):
            door("weight_norm", {**good("weight_norm"), "v": torch.randn(4000, 8), "g": torch.ones(1, 1)})


def test_norms_and_gains_need_not_be_contiguous() -> None:
    """Callers may pass strided tensors."""
    for name in ("weight_norm_backward", "linear_backward", "convolution_backward"):
        arguments = good(name)
        spread = {
            key: torch.stack([arguments[key], torch.full_like(arguments[key], 9.0)], 1)[:, 0] for key in ("g", "norms")
        }
        assert not spread["norms"].is_contiguous()
        for ours, expected in zip(
            call_native(name, {**arguments, **spread}), call_native(name, arguments), strict=True
        ):
            assert torch.equal(ours, expected)


FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("x_dtype", FLOATS)
@pytest.mark.parametrize("v_dtype", FLOATS)
@pytest.mark.parametrize("batch", [1, 3, 30, 100])
def test_dtypes_mix_as_under_autocast(batch: int, x_dtype: torch.dtype, v_dtype: torch.dtype) -> None:
    """Every mixture of float32 and 16-bit types agrees with the plain formulas, forward and backward."""
    v, x, dy = torch.randn(6, 4), torch.randn(batch, 4), torch.randn(batch, 6)
    for g_dtype in FLOATS:
        for bias_dtype in (None, *FLOATS):
            g = torch.rand(6, 1).to(g_dtype)
            bias = None if bias_dtype is None else torch.randn(6).to(bias_dtype)
            arguments = (x.to(x_dtype), v.to(v_dtype), g, bias, 0, 0.0, True)
            with wnfused.backend("native"):
                y, norms = torch.ops.wnfused.linear(*arguments)
                saved = (*arguments[:3], norms, y, 0, 0.0, bias is not None, [True] * 4)
                gradients = torch.ops.wnfused.linear_backward(dy.to(x_dtype), *saved)
            assert y.dtype == x_dtype and [t.dtype for t in gradients[:3]] == [x_dtype, v_dtype, g_dtype]
            exact = [t if t is None else t.double() for t in arguments[:4]]
            y64, norms64 = reference.linear(*exact, 0, 0.0, True)
            close(y, y64)
            masked = torch.where(y > 0, dy.to(x_dtype), 0).double()
            exact_saved = (*exact[:3], norms64, None, 0, 0.0, bias is not None, [True] * 4)
            for ours, expected in zip(gradients, reference.linear_backward(masked, *exact_saved), strict=True):
                close(ours, expected)


def close(ours: Tensor, expected: Tensor) -> None:
    tolerance = 0.05  # bfloat16 has 8 bits, and the weight is rounded to it as well
    error = (ours.double() - expected).abs().max() / expected.abs().max()
    assert error < tolerance, error
