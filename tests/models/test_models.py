"""The paper's networks: structure, parameter counts compared with the literature, and very deep instances."""

import copy
import pickle
import sys

import pytest
import torch
from torch import nn

import wnfused
from wnfused.models import CNN, MLP, WRN, ResNet, resnet20, resnet56, resnet110, resnet164
from wnfused.nn.base import WeightNormalized

NORMS = ["weight", "batch", "none"]
IMAGES = (2, 3, 16, 16)
SMALL = {
    "MLP": (lambda norm: MLP(3, [9, 7, 5], inputs=48, norm=norm), (2, 3, 4, 4)),
    "CNN": (lambda norm: CNN(4, channels=6, norm=norm), IMAGES),
    "ResNet": (lambda norm: ResNet(14, norm=norm), IMAGES),
    "bottleneck": (lambda norm: ResNet(20, norm=norm, bottleneck=True), IMAGES),
    "WRN": (lambda norm: WRN(16, 2, norm=norm), IMAGES),
}
small = pytest.mark.parametrize(("build", "shape"), SMALL.values(), ids=SMALL.keys())


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def normalized(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, WeightNormalized)]


@small
@pytest.mark.parametrize("norm", NORMS)
def test_every_parameter_gets_a_gradient(build, shape, norm):
    model = build(norm)
    y = model(torch.randn(shape))
    assert y.shape == (2, 10)
    y.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@small
def test_norm_is_the_only_difference(build, shape):
    weight, batch, none = (build(norm) for norm in NORMS)
    convs = [[tuple(m.weight.shape) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
             for model in (weight, batch, none)]  # fmt: skip
    assert convs[0] == convs[1] == convs[2]
    assert len(normalized(weight)) == len(convs[0]) - 1  # all but the head
    assert type(weight.head) is nn.Linear
    assert not normalized(batch) and not normalized(none)
    assert sum(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in batch.modules()) == len(convs[0]) - 1
    fused = sum(m.activation == "relu" for m in normalized(weight))
    assert fused == sum(isinstance(m, nn.ReLU) for m in batch.modules())
    assert fused == sum(isinstance(m, nn.ReLU) for m in none.modules())
    assert size(weight) == size(batch)  # a gain and a bias, or a scale and a shift


@small
def test_folded_network_matches_the_one_without_norm(build, shape):
    model, plain, x = build("weight"), build("none"), torch.randn(shape)
    expected = model(x)
    wnfused.fold(model)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(x), expected)


@small
def test_works_with_fx_and_torchs_weight_norm(build, shape):
    model, x = build("weight"), torch.randn(shape)
    expected = model(x)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), expected)
    wnfused.to_torch(model)
    torch.testing.assert_close(model(x), expected)


def test_mlp_widths():
    layers = normalized(MLP(3, 7, inputs=5, outputs=2))
    assert [(m.in_features, m.out_features, m.activation) for m in layers] == [
        (5, 7, "relu"), (7, 7, "relu"), (7, 7, "relu"),
    ]  # fmt: skip
    assert [m.out_features for m in normalized(MLP(2, (4, 6), inputs=5))] == [4, 6]


def test_cnn_matches_the_paper():
    layers = normalized(CNN(5))
    assert [(m.in_channels, m.out_channels) for m in layers] == [(3, 512)] + 4 * [(512, 512)]
    assert [m.stride for m in layers] == 2 * [(2, 2)] + 3 * [(1, 1)]
    assert all(m.kernel_size == (3, 3) and m.activation == "relu" and m.bias is not None for m in layers)
    assert CNN(4, channels=8).features(torch.randn(1, 3, 32, 32)).shape == (1, 8, 8, 8)


def test_wrn_matches_the_paper():
    model = WRN(22, 2)  # 3 blocks per stage
    assert (model.stem.out_channels, model.stem.activation, model.head.in_features) == (32, None, 128)
    x = torch.randn(2, 3, 32, 32)
    for stage, (width, resolution) in zip(model.stages, [(32, 32), (64, 16), (128, 8)], strict=True):
        assert len(stage) == 3
        x = stage(model.stem(x) if width == 32 else x)
        assert x.shape == (2, width, resolution, resolution)
        assert x.min() < 0  # no ReLU after the sum
        for block in stage:
            assert [m.kernel_size for m in block.branch] == [(3, 3), (3, 3)]
            assert [m.activation for m in block.branch] == ["relu", None]
            assert all(m.bias is not None for m in block.branch)
    shortcuts = [block.shortcut for stage in model.stages for block in stage]
    assert [type(m).__name__ for m in shortcuts] == 3 * ["Identity"] + 2 * (["WNConv2d"] + 2 * ["Identity"])
    assert [(m.kernel_size, m.stride, m.activation) for m in (shortcuts[3], shortcuts[6])] == 2 * [
        ((1, 1), (2, 2), None)
    ]


def test_wrn_by_blocks_or_depth():
    assert [tuple(p.shape) for p in WRN(blocks=2, k=3).parameters()] == [
        tuple(p.shape) for p in WRN(16, 3).parameters()
    ]


def test_resnet_matches_the_paper():
    basic, bottleneck = ResNet(20), ResNet(29, bottleneck=True)  # 3 blocks per stage
    assert basic.stem.activation == bottleneck.stem.activation == "relu"
    assert [len(stage) for stage in basic.stages] == [len(stage) for stage in bottleneck.stages] == [3, 3, 3]
    for model, sizes, widths in ((basic, [3, 3], [16, 32, 64]), (bottleneck, [1, 3, 1], [64, 128, 256])):
        x = model.stem(torch.randn(2, 3, 32, 32))
        for stage, width, resolution in zip(model.stages, widths, (32, 16, 8), strict=True):
            x = stage(x)
            assert x.shape == (2, width, resolution, resolution)
            assert x.min() < 0
            assert [m.kernel_size[0] for m in stage[1].branch] == sizes
            assert [m.activation for m in stage[1].branch] == ["relu"] * (len(sizes) - 1) + [None]
    # "Downsampling is performed … by the first layers" of a stage.
    assert [m.stride[0] for m in bottleneck.stages[1][0].branch] == [2, 1, 1]


@pytest.mark.parametrize(
    ("build", "layers"), [(resnet20, 20), (resnet56, 56), (resnet110, 110), (resnet164, 164), (lambda: WRN(40, 1), 38)]
)
def test_depth_counts_the_layers_on_the_main_path(build, layers):
    """Shortcuts do not count, except that WRN's 6N + 4 counts one per stage, while the paper's network has only two."""
    main = [
        name for name, m in build().named_modules() if isinstance(m, nn.Linear | nn.Conv2d) and "shortcut" not in name
    ]
    assert len(main) == layers


# Parameter counts of the networks in the literature, computed from their descriptions.


def basic_literature(n: int) -> int:
    """He et al. (2016a): no biases, batch norm after each conv, shortcuts without parameters, 10 classes."""
    total, inputs = 3 * 16 * 9 + 2 * 16, 16
    for width in (16, 32, 64):
        for _ in range(n):
            total += 9 * width * (inputs + width) + 4 * width
            inputs = width
    return total + 64 * 10 + 10


def preactivation_literature(n: int, widths: tuple[int, ...], bottleneck: bool) -> int:
    """He et al. (2016b), Zagoruyko & Komodakis (2016): batch norm before each conv, 1×1 shortcuts without it."""
    total, inputs = 3 * 16 * 9, 16
    for width in widths:
        outputs = 4 * width if bottleneck else width
        for _ in range(n):
            sizes = [(inputs, width, 1), (width, width, 9), (width, outputs, 1)] if bottleneck else [
                (inputs, width, 9), (width, width, 9)
            ]  # fmt: skip
            total += sum(taps * i * o + 2 * i for i, o, taps in sizes)
            total += inputs * outputs if inputs != outputs else 0
            inputs = outputs
    return total + 2 * inputs + inputs * 10 + 10


def test_counts_match_the_published_ones():
    assert basic_literature(9) == 853_018  # 0.85M
    assert basic_literature(18) == 1_727_962  # 1.7M
    assert preactivation_literature(18, (16, 32, 64), bottleneck=True) == 1_703_258  # 1.7M
    assert preactivation_literature(4, (160, 320, 640), bottleneck=False) == 36_479_194  # WRN-28-10: 36.5M
    assert round(preactivation_literature(6, (160, 320, 640), bottleneck=False) / 1e6, 1) == 55.8


@pytest.mark.parametrize(("build", "n"), [(resnet20, 3), (resnet56, 9), (resnet110, 18)])
def test_basic_resnet_has_the_published_size_plus_shortcuts(build, n):
    # Gain and bias replace the scale and shift of batch norm: only the shortcuts add parameters.
    shortcuts = (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)
    assert size(build()) == basic_literature(n) + shortcuts


def test_resnet164_has_the_published_size():
    outputs = 16 + sum(18 * (width + width + 4 * width) for width in (16, 32, 64))  # of convolutions
    shortcuts = 64 + 128 + 256
    batch_norms = sum(18 * 6 * width for width in (16, 32, 64)) + (16 - 64) + (64 - 128) + (128 - 256) + 256
    ours = 2 * (outputs + shortcuts) - 2 * batch_norms
    assert size(resnet164()) == preactivation_literature(18, (16, 32, 64), bottleneck=True) + ours


def test_wrn_40_10_has_the_published_size():
    literature = preactivation_literature(6, (160, 320, 640), bottleneck=False)
    stem = 3 * 9 * (160 - 16)  # the paper's stem has 16k channels
    first_block = 9 * 160 * (160 - 16) - 16 * 160  # so the first conv has more inputs, and no shortcut is needed
    outputs = 160 + sum(12 * width for width in (160, 320, 640)) + 320 + 640  # gains and biases, including shortcuts
    batch_norms = sum(12 * width for width in (160, 320, 640)) + (16 - 160) + (160 - 320) + (320 - 640) + 640
    with torch.device("meta"):
        model = WRN(40, 10)
    assert size(model) == literature + stem + first_block + 2 * outputs - 2 * batch_norms == 56_052_650


@pytest.fixture
def usual_recursion_limit():
    """Python's default: torch's compiler raises it for the rest of the process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield 1000
    sys.setrecursionlimit(before)


def test_a_thousand_layers_run_copy_and_pickle(usual_recursion_limit):
    model = WRN(blocks=170)
    assert len(normalized(model)) > usual_recursion_limit
    model(torch.randn(1, 3, 4, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert size(again) == size(model)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MLP(0, 5), "MLP: depth: expected an int >= 1, got 0"),
        (lambda: MLP(2, 0), "MLP: width: expected an int >= 1, got 0"),
        (lambda: MLP(2, [5]), r"MLP: width: expected an int >= 1, or a list of 2 of them .*, got \[5\]"),
        (lambda: MLP(2, "55"), "MLP: width: expected .* got '55'"),
        (lambda: MLP(2, [5, 0]), "MLP: width"),
        (lambda: MLP(2, 5, inputs=0), "MLP: inputs"),
        (lambda: MLP(2, 5, outputs=0), "MLP: outputs"),
        (lambda: MLP(2, 5, norm="layer"), "MLP: norm: expected one of 'weight', 'batch', 'none', got 'layer'"),
        (lambda: CNN(1), "CNN: n: expected an int >= 2, got 1"),
        (lambda: CNN(5, channels=0), "CNN: channels"),
        (lambda: CNN(5, in_channels=-1), "CNN: in_channels"),
        (lambda: CNN(5, norm=None), "CNN: norm"),
        (lambda: ResNet(57), r"ResNet: depth: expected 6n \+ 2 \(basic blocks\) with n >= 1, got 57"),
        (lambda: ResNet(2), "ResNet: depth"),
        (lambda: ResNet("56"), "ResNet: depth: .* got '56'"),
        (lambda: ResNet(166), r"ResNet: depth: expected 9n \+ 2 \(bottlenecks\) with n >= 1, got 166"),
        (lambda: ResNet(20, classes=0), "ResNet: classes"),
        (lambda: resnet20(norm="weigth"), "ResNet: norm"),
        (lambda: WRN(), "WRN: depth, blocks: expected exactly one of them"),
        (lambda: WRN(40, blocks=6), "WRN: depth, blocks: expected exactly one of them, got depth=40, blocks=6"),
        (lambda: WRN(41), r"WRN: depth: expected 6 \* blocks \+ 4 with blocks >= 1, got 41"),
        (lambda: WRN(4), "WRN: depth"),
        (lambda: WRN(blocks=0), "WRN: blocks: expected an int >= 1, got 0"),
        (lambda: WRN(10, 1.5), "WRN: k: expected an int >= 1, got 1.5"),
        (lambda: WRN(10, norm="x"), "WRN: norm"),
    ],
)  # fmt: skip
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()
