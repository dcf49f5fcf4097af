"""The operators through the C++ launch path: a driver executes its launches in triton's interpreter."""

import copy
import ctypes
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.support.autograd_cases import SOME, scalar
from tests.support.driver.interpreted import Callback, Interpreter, interpreted
from tests.support.reference import assert_close
from tests.support.samples import BY_NAME
from wnfused import WNConv1d, WNConv2d, WNConvTranspose1d, WNLinear
from wnfused.kernels.triton import table
from wnfused.ops.backends import native

pytestmark = [
    pytest.mark.usefixtures("_one_thread", "_compiled_afresh"),
    pytest.mark.skipif(native.load() is not None, reason=f"no native library: {native.load()}"),
]
Layer = tuple[torch.nn.Module, Tensor]
LAYERS = {
    "linear": lambda: (WNLinear(21, 34), torch.randn(3, 5, 21)),
    "linear, few rows, ReLU": lambda: (WNLinear(21, 34, bias=False, activation="relu"), torch.randn(3, 21)),
    "linear, bf16": lambda: (WNLinear(21, 34, dtype=torch.bfloat16), torch.randn(40, 21, dtype=torch.bfloat16)),
    "conv2d": lambda: (WNConv2d(4, 6, 3, stride=2), torch.randn(2, 4, 7, 9).to(memory_format=torch.channels_last)),
    "conv1d, groups": lambda: (WNConv1d(4, 6, 3, groups=2), torch.randn(2, 4, 9)),
    "depthwise": lambda: (WNConv2d(4, 4, 3, groups=4), torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)),
    "transposed": lambda: (WNConvTranspose1d(4, 6, 4, stride=2, activation="relu"), torch.randn(2, 4, 9)),
}


@pytest.fixture
def driver() -> Iterator[Interpreter]:
    with interpreted() as interpreter:
        yield interpreter


def with_gradients(layer: torch.nn.Module, x: Tensor, dy: Tensor | None = None) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = layer(x)
    dy = torch.ones_like(y) if dy is None else dy
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], dy.to(y.dtype))]


@pytest.mark.parametrize("name", [name for name in SOME if BY_NAME[name].x_shape is not None])
def test_first_and_second_derivatives(name: str, driver: Interpreter) -> None:
    sample = BY_NAME[name]
    tensors = tuple(t.detach().float().requires_grad_() for t in sample.tensors())
    exact = sample.tensors()
    own = torch.autograd.grad(scalar(sample.own)(*tensors), tensors, create_graph=True)
    wanted = torch.autograd.grad(scalar(sample.formula)(*exact), exact, create_graph=True)
    assert driver.launched
    second = [
        torch.autograd.grad(sum(d.square().sum() for d in ds), ts) for ds, ts in ((own, tensors), (wanted, exact))
    ]
    for a, b in zip([*own, *second[0]], [*wanted, *second[1]], strict=True):
        assert_close(a, b, 1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_repeated_calls_do_not_ask_python(name: str, driver: Interpreter) -> None:
    layer, x = LAYERS[name]()
    exact = copy.deepcopy(layer).double()
    with_gradients(layer, x)
    launches = len(driver.launched)
    for scale in (0.5, 3.0):  # other values in other memory
        with torch.no_grad():
            for p, q in zip(layer.parameters(), exact.parameters(), strict=True):
                q.copy_(p.mul_(scale))
        asked = table.misses()
        found = with_gradients(layer, x * scale)
        assert table.misses() == asked
        wanted = with_gradients(exact, (x * scale).double())
        for a, b in zip(found, wanted, strict=True):
            assert_close(a, b, 0.02 if a.dtype == torch.bfloat16 else 1e-5)
    assert len(driver.launched) > launches


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(driver: Interpreter, compiled: bool) -> None:
    layer = torch.nn.Sequential(WNConv1d(4, 6, 3, activation="relu"), torch.nn.Flatten(), WNLinear(6 * 7, 10))
    run = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    x = torch.randn(3, 4, 9)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x)
        gradients = torch.autograd.grad(y.sum(), list(layer.parameters()))
    exact = copy.deepcopy(layer).double()(x.double())
    assert y.dtype == torch.bfloat16 and all(d.dtype == torch.float32 for d in gradients)
    assert_close(y, exact, 0.03)
    assert set(driver.launched) >= {"gather", "linear_forward", "finish_weight"}


def test_masks_are_part_of_the_key(driver: Interpreter) -> None:
    layer, x = WNLinear(6, 5), torch.randn(4, 6)
    full = with_gradients(layer, x)
    layer.weight_g.requires_grad_(False)
    y = layer(x)
    for parameter, wanted in ((layer.weight_v, full[4]), (layer.bias, full[2])):
        (found,) = torch.autograd.grad(y.sum(), parameter, retain_graph=True)
        assert_close(found, wanted, 1e-6)


def test_unaligned_and_strided_tensors_have_their_own_recipes(driver: Interpreter) -> None:
    layer = WNLinear(16, 5)
    for x in (torch.randn(4, 16), torch.randn(4 * 16 + 1)[1:].view(4, 16), torch.randn(4, 32)[:, ::2]):
        recipes = table.size()
        assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias), 1e-5)
        assert table.size() == recipes + 1


@pytest.mark.parametrize(("code", "said"), [(709, "restart the process"), (1, "driver error 1")])
def test_a_launch_that_fails_is_an_error(driver: Interpreter, code: int, said: str) -> None:
    """709: the context of the kernel's handle was destroyed."""
    layer, x = WNLinear(6, 5), torch.randn(4, 6)
    wanted = layer(x)
    failing = Callback(lambda *_: code)
    table.use_driver(table.Driver(ctypes.cast(failing, ctypes.c_void_p).value or 0))
    with pytest.raises(RuntimeError, match=f"wnfused: the launch of a kernel failed: .*{said}"):
        layer(x)
    table.use_driver(driver.driver)
    assert_close(layer(x), wanted.double(), 1e-6)


def test_bad_arguments_are_python_s_errors(driver: Interpreter) -> None:
    layer = WNLinear(6, 5)
    layer(torch.randn(4, 6))
    with pytest.raises(ValueError, match="x: expected last dimension 6"):
        torch.ops.wnfused.linear(torch.randn(4, 7), layer.weight_v, layer.weight_g, None, 0, 0.0, False)
    with pytest.raises(ValueError, match="device"):
        torch.ops.wnfused.linear(torch.randn(4, 6, device="meta"), layer.weight_v, layer.weight_g, None, 0, 0.0, False)


def test_a_negative_dim_is_not_taken_for_a_norm_over_the_whole_weight(driver: Interpreter) -> None:
    """A known call is not checked again, so a wrong argument must not have the key of a right one."""
    x, v, g = torch.randn(3, 21), torch.randn(34, 21), torch.rand(())
    torch.ops.wnfused.linear(x, v, g, None, None, 0.0, False)
    asked = table.misses()
    torch.ops.wnfused.linear(x, v, g, None, None, 0.0, False)
    assert table.misses() == asked and driver.launched
    for dim in (-1, 0, -(2**63)):
        with pytest.raises(ValueError, match="wnfused::linear: (dim|g): "):
            torch.ops.wnfused.linear(x, v, g, None, dim, 0.0, False)
