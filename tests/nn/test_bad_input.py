"""Every bad argument of a public function or layer raises an error that names it, before anything has changed."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wnfused
from wnfused import functional

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")

NAN, INF = float("nan"), float("inf")
NAMED = (ValueError, TypeError)


def good(name: str) -> dict[str, Any]:
    """Valid arguments for each public function that takes tensors."""
    n = int(name[-2]) if name[-1] == "d" else 0
    v = (6, 4, *[3] * n)
    x = {"weight_norm": None, "wn_linear": (2, 4)}.get(name, (2, 6 if "transpose" in name else 4, *[8] * n))
    arguments: dict[str, Any] = {"v": torch.randn(v), "g": torch.rand(6, *[1] * (n + 1))}
    if x is not None:
        arguments["x"] = torch.randn(x)
        arguments["bias"] = torch.randn(4 if "transpose" in name else 6)
    return arguments


def check(name: str, bad: dict[str, Any], match: str) -> None:
    """Expect the error even right after a valid call, whose checks may be cached; no tensor is modified."""
    function: Callable[..., Tensor] = getattr(functional, name)
    arguments = good(name)
    function(**arguments)
    arguments.update(bad)
    before = {key: value.clone() for key, value in arguments.items() if isinstance(value, Tensor)}
    with pytest.raises(NAMED, match=f"^{name}: {match}") as error:
        function(**arguments)
    assert isinstance(error.value, RuntimeError)  # what torch's own functions raise
    assert error.value.__context__ is None  # no "unhashable type" from the cache above it
    for key, value in before.items():
        assert value.is_meta or value.is_sparse or torch.equal(value, arguments[key])


LINEAR = ["wn_linear"]
PLAIN = ["wn_conv1d", "wn_conv2d", "wn_conv3d"]
TRANSPOSED = ["wn_conv_transpose1d", "wn_conv_transpose2d", "wn_conv_transpose3d"]
CONVOLUTIONS = PLAIN + TRANSPOSED
LAYERS = LINEAR + CONVOLUTIONS
ALL = ["weight_norm", *LAYERS]
TENSORS = [(name, key) for name in ALL for key in good(name)]


@pytest.mark.parametrize(("name", "key"), TENSORS)
def test_tensors_that_are_not_floating_point(name: str, key: str) -> None:
    for kind in ("int64", "bool", "complex64", "float8_e4m3fn"):
        t = good(name)[key].to(getattr(torch, kind))
        check(name, {key: t}, rf"{key}: expected a float32, .* got {kind}")


@pytest.mark.parametrize(("name", "key"), TENSORS)
def test_arguments_that_are_not_tensors(name: str, key: str) -> None:
    check(name, {key: good(name)[key].tolist()}, f"{key}: expected a tensor, got list")
    check(name, {key: 1.0}, f"{key}: expected a tensor, got float")
    if key != "bias":
        check(name, {key: None}, f"{key}: expected a tensor, got NoneType")


@pytest.mark.parametrize(("name", "key"), [pair for pair in TENSORS if pair[1] != "v"])
def test_dtype_or_device_different_from_v(name: str, key: str) -> None:
    t = good(name)[key]
    check(name, {key: t.double()}, f"{key}: expected dtype torch.float32 like v, got torch.float64")
    check(name, {key: t.bfloat16()}, f"{key}: expected dtype torch.float32 like v, got torch.bfloat16")
    check(name, {key: t.to("meta")}, f"{key}: expected device cpu like v, got meta")


@pytest.mark.parametrize("name", ALL)
def test_v_of_a_different_dtype(name: str) -> None:
    v = good(name)["v"]
    check(name, {"v": v.half()}, "[xg]: expected dtype torch.float16 like v, got torch.float32")
    check(name, {"v": v.to("meta")}, "[xg]: expected device meta like v, got cpu")


@pytest.mark.parametrize("name", ALL)
def test_sparse_tensors(name: str) -> None:
    for key, t in good(name).items():
        check(name, {key: t.to_sparse()}, f"{key}: expected a .*(dense|strided).* tensor")


# which functions, bad arguments, the error after "function: "
ARGUMENTS: list[tuple[list[str], dict[str, Any], str]] = [
    (ALL, {"dim": 9}, "dim: expected None or 0 to . for a .-d weight, got 9"),
    (ALL, {"dim": -1}, "dim: expected None or 0 to .*, got -1; .* pass dim=None"),
    (ALL, {"dim": -2}, "dim: expected None or 0 to .*, got -2$"),
    (ALL, {"dim": 0.0}, "dim: expected an int or None, got 0.0"),
    (ALL, {"dim": False}, "dim: expected an int or None, got False"),
    (ALL, {"dim": "0"}, "dim: expected an int or None, got '0'"),
    (ALL, {"dim": [0]}, r"dim: expected an int or None, got \[0\]"),
    (ALL, {"eps": -1e-3}, "eps: expected a finite number >= 0, got -0.001"),
    (ALL, {"eps": NAN}, "eps: expected a finite number >= 0, got nan"),
    (ALL, {"eps": INF}, "eps: expected a finite number >= 0, got inf"),
    (ALL, {"eps": "small"}, "eps: expected a finite number >= 0, got 'small'"),
    (ALL, {"eps": None}, "eps: expected a finite number >= 0, got None"),
    (ALL, {"eps": torch.ones(2)}, "eps: expected a finite number >= 0, got tensor"),
    (ALL, {"g": torch.ones(6)}, r"g: expected shape \(6, 1.*\) for v of shape .* and dim=0, got \(6,\)"),
    (ALL, {"g": torch.ones(())}, r"g: expected shape \(6, 1.*\) for v of shape .* and dim=0, got \(\)"),
    (ALL, {"g": torch.ones(()), "dim": 1}, r"g: expected shape \(1, 4.*\) for v of shape .* and dim=1, got \(\)"),
    (ALL, {"dim": None}, r"g: expected shape \(\) for v of shape .* and dim=None, got \(6, 1"),
    (ALL, {"dim": 1}, r"g: expected shape \(1, 4.*\) for v of shape .* and dim=1, got \(6, 1"),
    (LAYERS, {"bias": torch.ones(7)}, r"bias: expected shape \(.,\), got \(7,\)"),
    (LAYERS, {"bias": torch.ones(1)}, r"bias: expected shape \(.,\), got \(1,\)"),
    (LAYERS, {"bias": torch.ones(())}, r"bias: expected shape \(.,\), got \(\)"),
    (LAYERS, {"bias": torch.ones(6, 1)}, r"bias: expected shape \(.,\), got \(6, 1\)"),
    (LAYERS, {"activation": "gelu"}, "activation: expected None or 'relu', got 'gelu'"),
    (LAYERS, {"activation": nn.ReLU}, "activation: expected None or 'relu', got <"),
    (LAYERS, {"activation": ["relu"]}, r"activation: expected None or 'relu', got \['relu'\]"),
    (LAYERS, {"activation": True}, "activation: expected None or 'relu', got True"),
    (LINEAR, {"x": torch.ones(())}, r"x: expected last dimension 4 .*, got shape \(\)"),
    (LINEAR, {"x": torch.ones(2, 5)}, r"x: expected last dimension 4 .*, got shape \(2, 5\)"),
    (LINEAR, {"v": torch.ones(4)}, r"v: expected 2 dimensions \[out, in\], got shape \(4,\)"),
    (LINEAR, {"v": torch.ones(6, 4, 1)}, r"v: expected 2 dimensions \[out, in\], got shape \(6, 4, 1\)"),
    (CONVOLUTIONS, {"x": torch.ones(8)}, r"x: expected . or . dimensions, got shape \(8,\)"),
    (CONVOLUTIONS, {"x": torch.ones(1, 1, 2, 4, 8, 8)}, r"x: expected . or . dimensions, got shape \(1, 1, 2"),
    (CONVOLUTIONS, {"v": torch.ones(6, 4)}, r"v: expected . non-empty dimensions, got shape \(6, 4\)"),
    (CONVOLUTIONS, {"v": torch.ones(6, 4, 1, 1, 1, 1)}, "v: expected . non-empty dimensions, got shape"),
    (CONVOLUTIONS, {"groups": 0}, "groups: expected an int >= 1, got 0"),
    (CONVOLUTIONS, {"groups": -1}, "groups: expected an int >= 1, got -1"),
    (CONVOLUTIONS, {"groups": 1.0}, "groups: expected an int >= 1, got 1.0"),
    (CONVOLUTIONS, {"groups": True}, "groups: expected an int >= 1, got True"),
    (CONVOLUTIONS, {"groups": "1"}, "groups: expected an int >= 1, got '1'"),
    (CONVOLUTIONS, {"groups": None}, "groups: expected an int >= 1, got None"),
    (CONVOLUTIONS, {"groups": 5}, r"groups: expected a divisor of v.shape\[0\] = 6, got 5"),
    (PLAIN, {"groups": 2}, "x: expected 8 channels for v of shape .* and groups=2, got shape"),
    *((CONVOLUTIONS, {key: bad}, f"{key}: expected") for key in ("stride", "dilation") for bad in (0, -1)),
    *(
        (CONVOLUTIONS, {key: bad}, f"{key}: expected")
        for key in ("stride", "dilation", "padding")
        for bad in (-1, 1.0, 1.5, True, None, "1", "", (), (1, 1, 1, 1), (1.0,), (True,), [-1], {1: 1}, torch.ones(1))
    ),
    *((CONVOLUTIONS, {key: 2**31}, f"{key}: expected integers <= 2147483647") for key in ("stride", "dilation")),
    (CONVOLUTIONS, {"padding": 9223372036854775803}, "padding: expected integers <= 2147483647"),
    (PLAIN, {"padding": "full"}, "padding: expected .*, got 'full'"),
    (PLAIN, {"padding": "SAME"}, "padding: expected .*, got 'SAME'"),
    (PLAIN, {"padding": "same", "stride": 2}, "padding: 'same' needs stride 1, got stride=2"),
    (PLAIN, {"padding_mode": "mirror"}, r"padding_mode: expected one of \('zeros', .*\), got 'mirror'"),
    (PLAIN, {"padding_mode": None}, r"padding_mode: expected one of \('zeros', .*\), got None"),
    (PLAIN, {"padding_mode": ["zeros"]}, r"padding_mode: expected one of \('zeros', .*\), got \['zeros'\]"),
    (PLAIN, {"padding_mode": "reflect", "padding": 8}, "padding: .*8"),
    (PLAIN, {"padding_mode": "circular", "padding": 9}, "padding: .*9"),
    (PLAIN, {"dilation": 5}, "x: padded size 8 is smaller than the kernel's reach 11 in spatial dimension 0"),
    (TRANSPOSED, {"padding": "same"}, "padding: expected an int or . of them, got 'same'"),
    (TRANSPOSED, {"padding": 5}, "padding: 5 gives output size 0 in spatial dimension 0"),
    (TRANSPOSED, {"output_padding": 1}, "output_padding: expected less than stride or dilation .*, got 1"),
    (TRANSPOSED, {"output_padding": 2, "stride": 2}, "output_padding: expected less than stride or dilation"),
    *(
        (TRANSPOSED, {"output_padding": bad}, "output_padding: expected")
        for bad in (-1, 0.0, False, "0", None, (0,) * 4)
    ),
]


@pytest.mark.parametrize(("names", "bad", "match"), ARGUMENTS, ids=[str(case[1]) for case in ARGUMENTS])
def test_arguments(names: list[str], bad: dict[str, Any], match: str) -> None:
    for name in names:
        check(name, bad, match)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_cached_sizes_do_not_accept_equal_values_of_other_types(name: str) -> None:
    """1 == 1.0 == True, in a tuple as well."""
    count = int(name[-2])
    for key in ("stride", "dilation", "padding"):
        getattr(functional, name)(**good(name), **{key: (1,) * count})
        for one in (1.0, True):
            check(name, {key: (one,) * count}, f"{key}: expected integers")


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_shapes_of_convolutions(name: str) -> None:
    x, v = good(name)["x"], good(name)["v"]
    check(name, {"x": x[:, :-1]}, "x: expected . channels for v of shape .* and groups=1, got shape")
    check(name, {"x": x[..., :0]}, "x: expected non-empty spatial dimensions, got shape")
    for d in range(v.ndim):
        check(name, {"v": v.narrow(d, 0, 0)}, "v: expected . non-empty dimensions, got shape")
    if name in PLAIN:
        check(name, {"x": x[..., :2]}, "x: padded size 2 is smaller than the kernel's reach 3 in spatial dimension")


SIZES = {"in_channels": 4, "out_channels": 6, "kernel_size": 3}
LINEAR_LAYER = (wnfused.WNLinear, {"in_features": 4, "out_features": 6})
PLAIN_LAYERS = [(kind, SIZES) for kind in (wnfused.WNConv1d, wnfused.WNConv2d, wnfused.WNConv3d)]
TRANSPOSED_LAYERS = [
    (kind, SIZES) for kind in (wnfused.WNConvTranspose1d, wnfused.WNConvTranspose2d, wnfused.WNConvTranspose3d)
]
CONVOLUTION_LAYERS = PLAIN_LAYERS + TRANSPOSED_LAYERS
EVERY_LAYER = [LINEAR_LAYER, *CONVOLUTION_LAYERS]
CONSTRUCTORS: list[tuple[list[Any], dict[str, Any], str]] = [
    (EVERY_LAYER, {"activation": "gelu"}, "activation: expected"),
    (EVERY_LAYER, {"activation": nn.ReLU}, "activation: expected"),
    (EVERY_LAYER, {"dim": 9}, "dim: expected"),
    (EVERY_LAYER, {"dim": -1}, "pass dim=None"),
    (EVERY_LAYER, {"dim": True}, "dim: expected"),
    (EVERY_LAYER, {"dim": 0.0}, "dim: expected"),
    (EVERY_LAYER, {"dim": "0"}, "dim: expected"),
    *((EVERY_LAYER, {"eps": bad}, "eps: expected") for bad in (-1e-3, NAN, INF, "0", None)),
    *((EVERY_LAYER, {"dtype": bad}, "dtype") for bad in (torch.int32, torch.bool, torch.complex64)),
    *(([LINEAR_LAYER], {key: bad}, key) for key in ("in_features", "out_features") for bad in (-1, 4.0, "4", None)),
    *(
        (CONVOLUTION_LAYERS, {key: bad}, key)
        for key in ("in_channels", "out_channels", "kernel_size", "stride", "dilation", "groups")
        for bad in (0, -1, 2.0, "2", None)
    ),
    (CONVOLUTION_LAYERS, {"groups": 3}, "groups"),
    (CONVOLUTION_LAYERS, {"groups": 4}, "groups"),
    *((CONVOLUTION_LAYERS, {"kernel_size": bad}, "kernel_size") for bad in ((), (1, 1, 1, 1), (0,), True)),
    *((CONVOLUTION_LAYERS, {"padding": bad}, "padding") for bad in (-1, 0.5, None, "full", (1, 1, 1, 1))),
    (PLAIN_LAYERS, {"padding": "same", "stride": 2}, "padding='same'"),
    (PLAIN_LAYERS, {"padding_mode": "mirror"}, "padding_mode"),
    (PLAIN_LAYERS, {"padding_mode": None}, "padding_mode"),
    (PLAIN_LAYERS, {"padding_mode": ["zeros"]}, r"padding_mode: expected one of .*, got \['zeros'\]"),
    (TRANSPOSED_LAYERS, {"padding": "same"}, "padding"),
    (TRANSPOSED_LAYERS, {"padding_mode": "reflect"}, "padding mode"),
    *((TRANSPOSED_LAYERS, {"output_padding": bad}, "output_padding") for bad in (-1, 0.5, None)),
]


@pytest.mark.parametrize(("layers", "bad", "match"), CONSTRUCTORS, ids=[str(case[1]) for case in CONSTRUCTORS])
def test_constructors(layers: list[Any], bad: dict[str, Any], match: str) -> None:
    for kind, arguments in layers:
        kind(**arguments)
        with pytest.raises(NAMED, match=match):
            kind(**{**arguments, **bad})


@pytest.mark.parametrize(("kind", "arguments"), EVERY_LAYER, ids=[kind.__name__ for kind, _ in EVERY_LAYER])
def test_inputs_of_layers(kind: type[nn.Module], arguments: dict[str, int]) -> None:
    layer = kind(**arguments)
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    n = layer.weight_v.ndim - 2
    for bad in (
        torch.ones(2, 5, *[8] * n),
        torch.ones(2, 4, *[8] * n).int(),
        torch.ones(2, 4, *[8] * n).half(),
        None,
        3,
    ):
        with pytest.raises(NAMED, match=": x: expected") as error:
            layer(bad)
        assert isinstance(error.value, RuntimeError)
    for key, value in layer.state_dict().items():
        assert torch.equal(value, state[key])


@pytest.mark.parametrize("mode", ["reflect", "circular"])
def test_padding_wider_than_the_input(mode: str) -> None:
    with pytest.raises(ValueError, match="^wn_conv1d: padding: "):
        wnfused.WNConv1d(4, 6, 3, padding=9, padding_mode=mode)(torch.ones(2, 4, 8))


@pytest.mark.parametrize("name", ["x", "", "Native", "cuda", None, 3])
def test_unknown_backend(name: Any) -> None:
    with wnfused.backend("torch"):
        with pytest.raises(ValueError, match="^backend: unknown name .*, expected one of auto, triton, native, torch"):
            wnfused.backend(name)
        assert wnfused.ops.backends.chosen() == "torch"


def test_unknown_backend_in_the_environment() -> None:
    environment = {**os.environ, "WNFUSED_BACKEND": "x"}
    done = subprocess.run(
        [sys.executable, "-c", "import wnfused"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "ValueError: environment variable WNFUSED_BACKEND: backend: unknown name 'x', expected one of" in done.stderr


MODELS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda model: wnfused.apply(model, dim=7), "dim: expected None or 0 to 2 for a 3-d weight, got 7"),
    (lambda model: wnfused.apply(model, dim=2), "dim: expected None or 0 to 1 for a 2-d weight, got 2"),
    (lambda model: wnfused.apply(model, dim="0"), "dim: expected an int or None, got '0'"),
    (lambda model: wnfused.apply(model, eps=-1), "eps: expected a finite number >= 0, got -1"),
    (lambda model: wnfused.to_torch(model, api="hooks"), "api: expected one of .*, got 'hooks'"),
    (lambda model: wnfused.state_dict(model, spelling="old"), "spelling: expected one of .*, got 'old'"),
    (lambda model: wnfused.convert([model]), "model: expected a torch.nn.Module, got list"),
    (lambda model: wnfused.apply(None), "model: expected a torch.nn.Module, got NoneType"),
    (lambda model: wnfused.fold(model.state_dict()), "model: expected a torch.nn.Module, got OrderedDict"),
    (lambda model: wnfused.to_torch(3), "model: expected a torch.nn.Module, got int"),
    (lambda model: wnfused.state_dict("model"), "model: expected a torch.nn.Module, got str"),
    (lambda model: wnfused.frozen(model.parameters), "model: expected a torch.nn.Module, got method"),
]


@pytest.mark.parametrize(("call", "match"), MODELS, ids=[match for _, match in MODELS])
def test_functions_of_models(call: Callable[[Any], Any], match: str) -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.utils.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 6), wnfused.WNLinear(6, 7)
    )
    before = str(model), {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(NAMED, match=match):
        call(model)
    assert str(model) == before[0]
    assert list(model.state_dict()) == list(before[1])
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[1][key])
