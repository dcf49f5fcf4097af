"""wn_convNd and wn_conv_transposeNd on every backend against float64: values, gradients, layouts, extremes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import CONVS, TRANSPOSED, assert_close, assert_gradients_close, doubles, errors, gradients, normalized
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import wnfused
from wnfused import functional
from wnfused.ops.reference import gain_shape

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's remark on even kernels

OWN = {
    (1, False): functional.wn_conv1d,
    (2, False): functional.wn_conv2d,
    (3, False): functional.wn_conv3d,
    (1, True): functional.wn_conv_transpose1d,
    (2, True): functional.wn_conv_transpose2d,
    (3, True): functional.wn_conv_transpose3d,
}
FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}

Shape = tuple[int, ...]
Inputs = list[Tensor | None]


def make(
    x: Shape,
    v: Shape,
    dim: int | None,
    dtype: torch.dtype = torch.float32,
    *,
    bias: bool = True,
    transposed: bool = False,
    groups: int = 1,
) -> Inputs:
    channels = v[1] * groups if transposed else v[0]
    gain = torch.rand(gain_shape(v, dim)) + 0.5
    tensors = [torch.randn(x), torch.randn(v), gain, torch.randn(channels) if bias else None]
    return [None if t is None else t.to(dtype).requires_grad_() for t in tensors]


def run(inputs: Inputs, transposed: bool = False, relu: bool = False, **arguments: Any) -> Tensor:
    v = inputs[1]
    assert v is not None
    return OWN[v.ndim - 2, transposed](*inputs, activation="relu" if relu else None, **arguments)  # type: ignore[operator]


def expected(
    inputs: Inputs,
    transposed: bool = False,
    relu: bool = False,
    dim: int | None = 0,
    eps: float = 0.0,
    **arguments: Any,
) -> Tensor:
    x, v, g, b = inputs
    assert v is not None and g is not None
    plain = TRANSPOSED if transposed else CONVS
    y = plain[v.ndim - 2](x, normalized(v, g, dim, eps), b, **arguments)
    return y.relu() if relu else y


def gradient_of(y_wide: Tensor) -> Tensor:
    """Random, but leaning towards y: dg = <dw, u> is then no sum of thousands of terms that cancel."""
    return torch.randn_like(y_wide) + y_wide.detach()


def check_against_float64(inputs: Inputs, transposed: bool = False, relu: bool = False, **arguments: Any) -> None:
    """Output and gradients against float64; nothing that was handed in is written to."""
    before = [None if t is None else t.detach().clone() for t in inputs]
    y = run(inputs, transposed, relu, **arguments)
    wide = doubles(*inputs)
    y_wide = expected(wide, transposed, relu, **arguments)
    assert y.dtype == inputs[0].dtype  # type: ignore[union-attr]
    assert_close(y, y_wide, what="y")
    dy = gradient_of(y_wide).to(y.dtype)
    if relu and y.numel():  # near zero the two may fall on different sides: both are right there
        dy = dy * (y_wide.abs() > 0.05 * y_wide.abs().max()).to(dy.dtype)
    kept = dy.clone()
    own, wanted = gradients(y, inputs, dy), gradients(y_wide, wide, dy.double())
    assert_gradients_close(own, wanted, wide[1], wide[2], arguments.get("dim", 0))  # type: ignore[arg-type]
    assert torch.equal(dy, kept)
    for t, was in zip(inputs, before, strict=True):
        assert was is None or torch.equal(t, was)  # type: ignore[arg-type]


# x, v, arguments: one of each number of dimensions, none of the sizes equal
PLAIN = [
    ((2, 6, 11), (5, 6, 3), {"padding": 1}),
    ((2, 6, 7, 9), (5, 6, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    ((2, 4, 4, 5, 3), (3, 4, 2, 3, 1), {"dilation": (1, 2, 1), "padding": 1}),
]
TURNED = [
    ((2, 6, 11), (6, 5, 3), {"padding": 1}),
    ((2, 6, 4, 5), (6, 5, 3, 2), {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)}),
    ((2, 4, 3, 2, 3), (4, 3, 2, 3, 1), {"dilation": (1, 2, 1)}),
]
CASES = [(*case, False) for case in PLAIN] + [(*case, True) for case in TURNED]
CASE_IDS = [f"{'transposed ' if case[3] else ''}{len(case[0]) - 2}d" for case in CASES]
each_convolution = pytest.mark.parametrize(("x", "v", "arguments", "transposed"), CASES, ids=CASE_IDS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@each_convolution
def test_values_and_gradients(
    backend: str, x: Shape, v: Shape, arguments: dict[str, Any], transposed: bool, dtype: torch.dtype
) -> None:
    for dim in (*range(len(v)), None):
        check_against_float64(make(x, v, dim, dtype, transposed=transposed), transposed, dim=dim, **arguments)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("eps", [0.0, 1e-3])
@each_convolution
def test_options(
    backend: str, x: Shape, v: Shape, arguments: dict[str, Any], transposed: bool, eps: float, bias: bool, relu: bool
) -> None:
    check_against_float64(make(x, v, 0, bias=bias, transposed=transposed), transposed, relu, eps=eps, **arguments)


@pytest.mark.parametrize("dim", [0, 1, 2, None])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("per_group", [1, 3])
def test_groups(backend: str, per_group: int, transposed: bool, dim: int | None) -> None:
    """Also depthwise, with one and with two outputs for each input channel."""
    groups, outputs = 4, 2 * per_group
    v = (groups * per_group, outputs, 3) if transposed else (groups * outputs, per_group, 3)
    arguments = {"groups": groups, "stride": 2, "padding": 1, "dim": dim}
    check_against_float64(
        make((2, groups * per_group, 9), v, dim, transposed=transposed, groups=groups), transposed, **arguments
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_depthwise(backend: str, transposed: bool) -> None:
    for dim in (0, 1, 3, None):
        inputs = make((2, 6, 5, 4), (6, 1, 3, 3), dim, transposed=transposed, groups=6)
        check_against_float64(inputs, transposed, dim=dim, groups=6, padding=1)


@pytest.mark.parametrize("padding", ["same", "valid", 2, (2,), [2]], ids=str)
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_padding_of_one_dimension(backend: str, kernel: int, dilation: int, padding: Any) -> None:
    check_against_float64(make((2, 3, 13), (4, 3, kernel), 0), padding=padding, dilation=dilation)


@pytest.mark.parametrize("padding", ["same", "valid", (0, 2), (3, 1)], ids=str)
def test_padding_of_two_dimensions(backend: str, padding: Any) -> None:
    check_against_float64(make((2, 3, 9, 8), (4, 3, 4, 3), 0), padding=padding, dilation=(1, 2))


def test_same_padding_of_three_dimensions(backend: str) -> None:
    check_against_float64(make((2, 3, 4, 5, 6), (4, 3, 2, 3, 4), 0), padding="same")


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "zeros"])
@pytest.mark.parametrize("padding", [0, 2, "same", "valid"], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_padding_modes(backend: str, n: int, padding: Any, mode: str) -> None:
    """As nn.ConvNd pads, batched and not; with an even kernel "same" is one wider on the right."""
    kernel, sizes = (4, 3, 2)[:n], (7, 5, 6)[:n]
    layer = getattr(nn, f"Conv{n}d")(3, 4, kernel, padding=padding, padding_mode=mode, dtype=torch.float64)
    for batch in ((2,), ()):
        inputs = make((*batch, 3, *sizes), (4, 3, *kernel), 0)
        y = run(inputs, padding=padding, padding_mode=mode)
        wide = doubles(*inputs)
        x, v, g, b = wide
        weights = {"weight": normalized(v, g, 0), "bias": b}  # type: ignore[arg-type]
        y_wide = torch.func.functional_call(layer, weights, (x,))
        assert_close(y, y_wide, what="y")
        dy = gradient_of(y_wide).float()
        assert_gradients_close(gradients(y, inputs, dy), gradients(y_wide, wide, dy.double()), v, g, 0)  # type: ignore[arg-type]


def test_numpy_integers_are_integers(backend: str) -> None:
    """Sizes computed with numpy work in torch's layers, and go on working when those are converted."""
    one, two = np.int64(1), np.int32(2)
    inputs = make((2, 4, 9), (6, 2, 3), 0, groups=2)
    sizes = {"stride": two, "padding": (one,), "dilation": [one], "groups": two}
    assert_close(run(inputs, **sizes), expected(doubles(*inputs), stride=2, padding=1, groups=2))
    layer = nn.Conv1d(two, two, two, stride=two, padding=one, dilation=one, groups=two)  # type: ignore[arg-type]
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(layer))
    x = torch.randn(2, 2, 9)
    before = model(x)
    wnfused.convert(model)
    assert_close(model(x), before.double())
    own = wnfused.WNConv1d(two, two, two, stride=two, padding=one, dilation=one, groups=two)  # type: ignore[arg-type]
    assert own(x).shape == before.shape
    assert wnfused.WNLinear(two, one)(torch.ones(3, 2)).shape == (3, 1)  # type: ignore[arg-type]


@each_convolution
def test_unbatched(backend: str, x: Shape, v: Shape, arguments: dict[str, Any], transposed: bool) -> None:
    for relu in (False, True):
        check_against_float64(make(x[1:], v, 0, transposed=transposed), transposed, relu, **arguments)


@each_convolution
def test_empty_batch(backend: str, x: Shape, v: Shape, arguments: dict[str, Any], transposed: bool) -> None:
    for dim in (0, 1, None):
        inputs = make((0, *x[1:]), v, dim, transposed=transposed)
        y = run(inputs, transposed, relu=True, dim=dim, **arguments)
        assert y.shape == expected(inputs, transposed, dim=dim, **arguments).shape
        for own, like in zip(gradients(y, inputs, torch.ones_like(y)), inputs, strict=True):
            assert own.shape == like.shape  # type: ignore[union-attr]
            assert not own.any()  # NaN counts as True


@pytest.mark.parametrize("dim", [0, 1, 2, None])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("v", [(1, 1, 1), (1, 5, 1), (5, 1, 1), (5, 5, 1), (1, 1, 4)], ids=str)
def test_single_rows_and_kernels_of_one_element(backend: str, v: Shape, transposed: bool, dim: int | None) -> None:
    inputs = make((3, v[0] if transposed else v[1], 6), v, dim, torch.float64, transposed=transposed)
    check_against_float64(inputs, transposed, dim=dim)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    n, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    groups, each_in, each_out = (draw(st.integers(1, 3)) for _ in range(3))
    kernel, stride, dilation = (draw(st.tuples(*[st.integers(1, 3)] * n)) for _ in range(3))
    padding = draw(st.tuples(*[st.integers(0, 2)] * n))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    arguments = {"stride": stride, "dilation": dilation, "groups": groups}
    if transposed:
        padding = tuple(min(p, (r - 1) // 2) for p, r in zip(padding, reach, strict=True))
        least = [1] * n
        limits = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
        arguments["output_padding"] = draw(st.tuples(*[st.integers(0, limit) for limit in limits]))
    else:
        least = [max(1, r - 2 * p) for r, p in zip(reach, padding, strict=True)]
    arguments["padding"] = padding
    sizes = [low + draw(st.integers(0, 4)) for low in least]
    v = (groups * each_in, each_out, *kernel) if transposed else (groups * each_out, each_in, *kernel)
    x = (draw(st.integers(1, 3)), groups * each_in, *sizes)
    arguments["dim"] = draw(st.sampled_from([*range(len(v)), None]))
    return {"x": x, "v": v, "transposed": transposed, "arguments": arguments}


@given(
    case=convolutions(),
    relu=st.booleans(),
    bias=st.booleans(),
    channels_last=st.booleans(),
    name=st.sampled_from(["native", "torch"]),
)
def test_any_shape(case: dict[str, Any], relu: bool, bias: bool, channels_last: bool, name: str) -> None:
    arguments, transposed = case["arguments"], case["transposed"]
    inputs = make(
        case["x"],
        case["v"],
        arguments["dim"],
        torch.float64,
        bias=bias,
        transposed=transposed,
        groups=arguments["groups"],
    )
    if channels_last:
        inputs[:2] = [as_channels_last(t) for t in inputs[:2]]
    with wnfused.backend(name):
        check_against_float64(inputs, transposed, relu, **arguments)


def as_channels_last(t: Tensor | None) -> Tensor:
    assert t is not None
    return t.detach().contiguous(memory_format=FORMATS[t.ndim - 2]).requires_grad_()


# Weights large beside the activations: the native kernel then scales the output or the input instead of the weight.
# "direct" is what its own convolutions take (tests/test_direct_convolution.py).
# side, x, v, transposed, arguments
SIDES = [
    ("output", (2, 80, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "dim": 0}),
    ("output", (2, 80, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "dim": None}),
    ("output", (2, 160, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "groups": 2, "dim": 0}),
    ("output", (2, 120, 7), (96, 120, 7), False, {"padding": 3, "dim": 0}),
    ("output", (2, 64, 2, 2, 2), (48, 64, 3, 3, 3), False, {"padding": 1, "dim": 0}),
    ("input", (2, 80, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "dim": 1}),
    ("input", (2, 8, 2, 2), (512, 8, 5, 5), False, {"padding": 6, "dim": None}),
    ("input", (2, 120, 7), (96, 120, 7), False, {"padding": 3, "dim": 1}),
    ("weight", (2, 80, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "dim": 2}),
    ("weight", (2, 160, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "groups": 2, "dim": 1}),
    ("weight", (2, 6, 9, 9), (4, 3, 3, 3), False, {"groups": 2, "dim": 0}),
    ("direct", (2, 6, 9, 9), (5, 6, 3, 3), False, {"dim": 0}),
    (
        "direct",
        (3, 17, 9, 5),
        (33, 17, 3, 2),
        False,
        {"stride": (2, 1), "padding": 1, "dilation": (1, 2), "dim": 0},
    ),
    ("direct", (2, 20, 37), (18, 20, 5), False, {"stride": 2, "padding": 2, "dim": 0}),
    ("output", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "dim": 1}),
    ("output", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "dim": None}),
    ("output", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "groups": 2, "dim": None}),
    ("output", (2, 120, 7), (120, 96, 7), True, {"padding": 3, "dim": 1}),
    ("input", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "dim": 0}),
    ("input", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "groups": 2, "dim": 0}),
    ("input", (2, 256, 2, 2), (256, 32, 3, 3), True, {"stride": 30, "dim": None}),
    ("input", (2, 64, 2, 2, 2), (64, 48, 3, 3, 3), True, {"padding": 1, "dim": 0}),
    ("weight", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "groups": 2, "dim": 1}),
    ("weight", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "dim": 3}),
    ("weight", (2, 6, 9, 9), (6, 5, 3, 3), True, {"dim": 0}),
]
SIDE_IDS = [f"{s[0]}{' transposed' if s[3] else ''} {len(s[1]) - 2}d {list(s[4].values())}" for s in SIDES]
each_side = pytest.mark.parametrize(("side", "x", "v", "transposed", "arguments"), SIDES, ids=SIDE_IDS)
# One of each side, plain and transposed, for what concerns the sides but not their every variant.
ONE_OF_EACH = [SIDES[i] for i in (0, 5, 8, 11, 14, 18, 23)]
one_of_each_side = pytest.mark.parametrize(
    ("side", "x", "v", "transposed", "arguments"), ONE_OF_EACH, ids=[f"{s[0]}-{s[3]}" for s in ONE_OF_EACH]
)


def sided(x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], **options: Any) -> Inputs:
    return make(x, v, arguments["dim"], transposed=transposed, groups=arguments.get("groups", 1), **options)


@each_side
def test_native_kernel_takes_the_side_the_cases_are_for(
    side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    """Seen from its temporaries: a scaled weight or input in its own order, or neither."""
    inputs = sided(x, v, transposed, arguments)
    with wnfused.backend("native"), torch.no_grad(), torch.autograd.profiler.profile(record_shapes=True) as profile:
        run(inputs, transposed, **arguments)
    temporaries = [e.input_shapes[0] for e in profile.function_events if e.name == "aten::empty_like"]
    taken = {"weight": list(v) in temporaries, "input": list(x) in temporaries}
    assert taken == {"weight": side == "weight", "input": side == "input"}, f"temporaries {temporaries}"


@pytest.mark.parametrize("channels_last", [False, True])
@each_side
def test_every_side(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], channels_last: bool
) -> None:
    inputs = sided(x, v, transposed, arguments)
    if channels_last:
        inputs[0] = as_channels_last(inputs[0])
    check_against_float64(inputs, transposed, relu=channels_last, **arguments)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@one_of_each_side
def test_options_of_every_side(
    backend: str,
    side: str,
    x: Shape,
    v: Shape,
    transposed: bool,
    arguments: dict[str, Any],
    relu: bool,
    bias: bool,
) -> None:
    check_against_float64(sided(x, v, transposed, arguments, bias=bias), transposed, relu, eps=3.0, **arguments)


def significant(t: Tensor) -> list[int]:
    """Strides, but for dimensions of one element, whose stride means nothing."""
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1]


@one_of_each_side
def test_channels_last_stays_channels_last(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    """Of the input, alone or with the weight: output and input gradient; dv and dg have their parameter's strides."""
    for weight_too in (False, True):
        for relu in (False, True):
            inputs = sided(x, v, transposed, arguments)
            inputs[0] = as_channels_last(inputs[0])
            if weight_too:
                inputs[1] = as_channels_last(inputs[1])
            y = run(inputs, transposed, relu, **arguments)
            assert y.is_contiguous(memory_format=torch.channels_last)
            results = gradients(y, inputs, torch.randn_like(y))
            for own, like in zip(results, inputs, strict=True):
                assert significant(own) == significant(like)  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [0, 1, 2, 3, None])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("x_last", [False, True])
@pytest.mark.parametrize("v_last", [False, True])
def test_output_has_the_strides_torch_gives_it(
    backend: str, v_last: bool, x_last: bool, transposed: bool, dim: int | None
) -> None:
    """torch answers in channels-last where input or weight is; the fake implementation says so too."""
    inputs = make((2, 6, 7, 8), (6, 6, 3, 3), dim, transposed=transposed)
    for i, last in enumerate((x_last, v_last)):
        inputs[i] = as_channels_last(inputs[i]) if last else inputs[i]
    x, v, _, b = inputs
    y = run(inputs, transposed, dim=dim)
    plain = TRANSPOSED if transposed else CONVS
    assert y.stride() == plain[2](x, v, b).stride()
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in inputs if t is not None]
        assert run(fakes, transposed, dim=dim).stride() == y.stride()  # type: ignore[arg-type]
    results = gradients(y, inputs, torch.randn_like(y))
    assert [t.stride() for t in results] == [t.stride() for t in inputs]  # type: ignore[union-attr]


def turned(t: Tensor) -> Tensor:
    """The same values with the dimensions in the opposite order in memory."""
    order = tuple(reversed(range(t.ndim)))
    return t.permute(order).contiguous().permute(order)


@pytest.mark.parametrize("dim", [0, 1, 4, None])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_parameters_in_any_strides(backend: str, n: int, dim: int | None) -> None:
    """A weight with its dimensions in another order, a strided gain: right values, dv in the weight's strides."""
    shape = (5, 4, 3, 2, 3)[: n + 2]
    dim = min(dim, n + 1) if dim is not None else None
    inputs = make((2, 4, *[6] * n), shape, dim)
    v, gain = inputs[1], inputs[2]
    assert v is not None and gain is not None
    inputs[1] = turned(v.detach()).requires_grad_()
    inputs[2] = torch.stack([gain.detach(), gain.detach() - 9], dim=-1)[..., 0].requires_grad_()
    check_against_float64(inputs, dim=dim)
    y = run(inputs, dim=dim)
    assert gradients(y, inputs, torch.randn_like(y))[1].stride() == inputs[1].stride()


GRADIENTS = {
    "expanded": lambda dy: torch.ones(()).expand_as(dy),
    "one per channel": lambda dy: torch.randn(dy.shape[1], 1, 1).expand_as(dy),
    "turned": turned,
    "channels last": lambda dy: dy.contiguous(memory_format=torch.channels_last),
    "strided": lambda dy: torch.stack([dy, dy - 9], dim=-1)[..., 0],
}


@pytest.mark.parametrize("kind", GRADIENTS)
@one_of_each_side
def test_output_gradients_of_any_layout(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], kind: str
) -> None:
    for relu in (False, True):
        inputs = sided(x, v, transposed, arguments)
        y = run(inputs, transposed, relu, **arguments)
        wide = doubles(*inputs)
        y_wide = expected(wide, transposed, relu, **arguments)
        dy = GRADIENTS[kind](gradient_of(y_wide).float())
        assert dy.shape == y.shape
        own, wanted = gradients(y, inputs, dy), gradients(y_wide, wide, dy.double())
        assert_gradients_close(own, wanted, wide[1], wide[2], arguments["dim"])  # type: ignore[arg-type]


def test_inputs_of_any_layout(backend: str) -> None:
    """Expanded, strided and permuted inputs, of a small weight and of a large one."""
    for v in ((6, 4, 3, 3), (128, 128, 3, 3)):
        channels = v[1]
        for x in (
            torch.randn(1, channels, 1, 1).expand(2, channels, 3, 3),
            torch.randn(2, channels, 3, 6)[..., ::2],
            torch.randn(3, 3, channels, 2).permute(3, 2, 0, 1),
        ):
            for dim in (0, 1, None):
                inputs = make(tuple(x.shape), v, dim)
                inputs[0] = x.detach().requires_grad_()
                check_against_float64(inputs, dim=dim, padding=1)


def along(t: Tensor, dim: int | None, rows: slice) -> Tensor:
    """The part of v, w or g that belongs to these rows."""
    return t if dim is None else t.movedim(dim, 0)[rows]


EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-9, 1e9, 1e20, 1e30])
@one_of_each_side
def test_extreme_norms(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], scale: float
) -> None:
    """Every other row is tiny or huge; both kinds are compared by themselves, as their dv differ by magnitudes."""
    dim = arguments["dim"]
    inputs = sided(x, v, transposed, arguments)
    with torch.no_grad():
        along(inputs[1], dim, EVEN).mul_(scale)  # type: ignore[arg-type]
    y = run(inputs, transposed, **arguments)
    wide = doubles(*inputs)
    y_wide = expected(wide, transposed, **arguments)
    assert_close(y, y_wide, what="y")
    dy = gradient_of(y_wide).float()
    own, wanted = gradients(y, inputs, dy), gradients(y_wide, wide, dy.double())
    for i, name in ((0, "dx"), (2, "dg"), (3, "db")):
        assert_close(own[i], wanted[i], what=name)
    for rows in (EVEN, ODD):
        assert_close(along(own[1], dim, rows), along(wanted[1], dim, rows), what="dv")


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize("transposed", [False, True])
def test_extreme_norm_of_the_whole_weight(backend: str, transposed: bool, scale: float) -> None:
    for v in ((6, 6, 3), (160, 160, 3)):
        inputs = make((2, v[0], 4), v, None, transposed=transposed)
        with torch.no_grad():
            inputs[1].mul_(scale)  # type: ignore[union-attr]
        check_against_float64(inputs, transposed, dim=None, padding=1)


@one_of_each_side
def test_zero_rows_give_zero_weight_and_gradients(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    """As a row of any direction with gain 0 does, except that its own gradients are zero too."""
    dim = arguments["dim"]
    inputs = sided(x, v, transposed, arguments)
    like = doubles(*inputs)
    with torch.no_grad():
        along(inputs[1], dim, EVEN).zero_()  # type: ignore[arg-type]
        along(like[2], dim, EVEN).zero_()  # type: ignore[arg-type]
    y, y_wide = run(inputs, transposed, **arguments), expected(like, transposed, **arguments)
    assert_close(y, y_wide, what="y")
    dy = gradient_of(y_wide).float()
    own, wanted = gradients(y, inputs, dy), gradients(y_wide, like, dy.double())
    assert_close(own[0], wanted[0], what="dx")
    assert_close(own[3], wanted[3], what="db")
    for i, name in ((1, "dv"), (2, "dg")):
        assert not along(own[i], dim, EVEN).any()
        assert_close(along(own[i], dim, ODD), along(wanted[i], dim, ODD), what=name)


def test_weight_of_zeros(backend: str) -> None:
    for v in ((6, 4, 3), (160, 160, 3)):
        inputs = make((2, v[1], 5), v, None)
        _, weight, _, b = inputs
        with torch.no_grad():
            weight.zero_()  # type: ignore[union-attr]
        y = run(inputs, dim=None)
        assert torch.equal(y, b[:, None].expand_as(y))  # type: ignore[index]
        dx, dv, dg, db = gradients(y, inputs, torch.ones_like(y))
        assert not dx.any() and not dv.any() and not dg.any()
        assert torch.equal(db, torch.full_like(db, 6.0))


def test_zero_gain(backend: str) -> None:
    for v in ((6, 4, 3), (160, 160, 3)):
        inputs = make((2, v[1], 5), v, 0)
        with torch.no_grad():
            inputs[2].zero_()  # type: ignore[union-attr]
        check_against_float64(inputs)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("v", [(5, 6, 3), (160, 160, 3)], ids=str)
def test_nan_and_infinity_stay_visible(backend: str, v: Shape, relu: bool) -> None:
    for bad in (math.nan, math.inf):
        inputs = make((2, v[1], 4), v, 0)
        with torch.no_grad():
            inputs[1][2, 1, 0] = bad  # type: ignore[index]
        y = run(inputs, relu=relu)
        assert y[:, 2].isnan().all()
        assert y[:, [0, 1, 3, 4]].isfinite().all()
    inputs = make((2, v[1], 4), v, 0)
    with torch.no_grad():
        inputs[0][1, 2, 3] = math.nan  # type: ignore[index]
    y = run(inputs, relu=relu)
    assert y[1, :, -1].isnan().all()
    assert y[0].isfinite().all()


@pytest.mark.parametrize("v", [(5, 6, 3), (160, 160, 3)], ids=str)
def test_relu_stops_infinite_gradients(backend: str, v: Shape) -> None:
    """Where the output is zero nothing flows back, whatever arrives: 0 and not infinity times zero."""
    inputs = make((2, v[1], 6), v, 0)
    y = run(inputs, relu=True)
    dy = torch.where(y > 0, 1.0, math.inf)
    assert dy.isinf().any()
    for own in gradients(y, inputs, dy):
        assert own.isfinite().all()


@one_of_each_side
def test_backends_serve_each_others_backward(
    side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    inputs = sided(x, v, transposed, arguments)
    wide = doubles(*inputs)
    y_wide = expected(wide, transposed, **arguments)
    dy = gradient_of(y_wide).float()
    wanted = gradients(y_wide, wide, dy.double())
    for forward, backward in (("native", "torch"), ("torch", "native")):
        with wnfused.backend(forward):
            y = run(inputs, transposed, **arguments)
        with wnfused.backend(backward):
            own = gradients(y, inputs, dy)
        assert_gradients_close(own, wanted, wide[1], wide[2], arguments["dim"])  # type: ignore[arg-type]


@one_of_each_side
def test_repeated_runs_are_the_same_bit_for_bit(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    inputs = sided(x, v, transposed, arguments)
    runs = []
    for _ in range(3):
        y = run(inputs, transposed, **arguments)
        runs.append([y, *gradients(y, inputs, torch.ones_like(y))])
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@one_of_each_side
def test_no_less_accurate_than_torch(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], dtype: torch.dtype
) -> None:
    """Errors against float64, averaged over draws, are not above those of torch's own composition in the same dtype."""
    plain = TRANSPOSED if transposed else CONVS
    options = {key: value for key, value in arguments.items() if key != "dim"}
    dim = arguments["dim"]
    totals = torch.zeros(2, 2, dtype=torch.float64)
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = sided(x, v, transposed, arguments, dtype=dtype)
        y_own = run(inputs, transposed, **arguments)
        y_torch = plain[2](inputs[0], torch._weight_norm(inputs[1], inputs[2], dim), inputs[3], **options)  # type: ignore[arg-type]
        wide = doubles(*inputs)
        y_wide = expected(wide, transposed, **arguments)
        dy = torch.randn_like(y_own)
        wanted = [y_wide, *gradients(y_wide, wide, dy.double())]
        for i, y in enumerate((y_own, y_torch)):
            for own, want in zip([y, *gradients(y, inputs, dy)], wanted, strict=True):
                totals[i] += torch.tensor(errors(own, want), dtype=torch.float64)
    assert (totals[0] <= totals[1] * 1.1).all(), f"(largest, rms) own {totals[0]}, torch {totals[1]}"
