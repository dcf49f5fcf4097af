"""From training to deployment: convert, train, fold, then each exporter; and what an unfolded model does there."""

import copy
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import wnfused
from wnfused.ops import decompositions, reference

X = torch.randn(2, 4, 10, generator=torch.Generator().manual_seed(0))
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def trained() -> nn.Module:
    """A model with torch's norms, converted, and trained for two steps, so that g is not the norm of v."""
    torch.manual_seed(0)
    model = nn.Sequential(
        weight_norm(nn.Conv1d(4, 8, 3, padding=1)),
        nn.LeakyReLU(0.1),
        weight_norm(nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1)),
        nn.Tanh(),
        weight_norm(nn.Linear(20, 3), dim=None),
    )
    assert wnfused.convert(model).count == 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    return model.eval()


@pytest.fixture
def unfolded() -> nn.Module:
    return trained()


@pytest.fixture
def folded() -> nn.Module:
    model = trained()
    wnfused.fold(model)
    return model


@pytest.fixture
def expected(unfolded: nn.Module) -> Tensor:
    with torch.no_grad():
        return unfolded(X)


def close(y: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)


def onnx_runtime(model: nn.Module, file: Path) -> Tensor:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.onnx.export(model, (X,), file, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    return torch.from_numpy(y)


@pytest.mark.parametrize("which", ["folded", "unfolded"])
def test_torch_export(which: str, expected: Tensor, request: pytest.FixtureRequest) -> None:
    program = torch.export.export(request.getfixturevalue(which), (X,))
    close(program.module()(X), expected)
    assert any("wnfused" in str(node.target) for node in program.graph.nodes) == (which == "unfolded")


@pytest.mark.parametrize("which", ["folded", "unfolded"])
def test_onnx(which: str, expected: Tensor, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    close(onnx_runtime(request.getfixturevalue(which), tmp_path / "model.onnx"), expected)


@pytest.mark.slow
def test_aot_inductor(folded: nn.Module, expected: Tensor, tmp_path: Path) -> None:
    package = torch._inductor.aoti_compile_and_package(
        torch.export.export(folded, (X,)), package_path=str(tmp_path / "model.pt2")
    )
    close(torch._inductor.aoti_load_package(package)(X), expected)


@pytest.mark.parametrize("which", ["folded", "unfolded"])
def test_torchscript_trace(which: str, expected: Tensor, request: pytest.FixtureRequest) -> None:
    close(torch.jit.trace(request.getfixturevalue(which), X)(X), expected)


def test_torchscript_script(folded: nn.Module, expected: Tensor) -> None:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(folded), file)
    file.seek(0)
    close(torch.jit.load(file)(X), expected)


def test_scripting_an_unfolded_model_says_what_to_do(unfolded: nn.Module) -> None:
    with pytest.raises(RuntimeError, match=r"WNConv1d cannot be compiled .* call wnfused.fold\(model\) first"):
        torch.jit.script(unfolded)


@pytest.mark.parametrize("which", ["folded", "unfolded"])
def test_safetensors(which: str, expected: Tensor, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = request.getfixturevalue(which)
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    other.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    close(other(X), expected)


class Low(nn.Module):
    """A low-rank update of a linear layer, as LoRA does it: it reads the layer's weight and merges into it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.a, self.b = nn.Parameter(torch.randn(2, layer.in_features)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.a.T @ self.b.T

    def merge(self) -> nn.Linear:
        with torch.no_grad():
            self.layer.weight += self.b @ self.a
        return self.layer


def test_low_rank_updates_merge_into_a_folded_model(folded: nn.Module) -> None:
    folded[4] = Low(folded[4])
    adapted = folded(X)
    folded[4] = folded[4].merge()
    torch.testing.assert_close(folded(X), adapted, rtol=1e-4, atol=1e-5)


class Causal(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(x, (2, 0)))


@pytest.mark.parametrize("kind", [nn.Conv1d, Causal])
def test_the_old_onnx_exporter_says_what_to_do(kind: type[nn.Conv1d], tmp_path: Path) -> None:
    model = nn.Sequential(weight_norm(kind(4, 8, 3)))
    wnfused.convert(model)
    try:
        with pytest.raises(RuntimeError, match=r"dynamo=False; call wnfused.fold\(model\) first"):
            torch.onnx.export(model, (X,), tmp_path / "model.onnx", dynamo=False)
    finally:
        torch.set_autocast_cache_enabled(True)  # torch's exporter leaves it off when it fails
    close(torch.jit.trace(model, X)(X), model(X))  # other uses of the tracer go on


@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 5), (6,)])
@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_decompositions_match_the_reference(shape: tuple[int, ...], eps: float) -> None:
    """For each dim, with a row of zeros, and with rows whose squares overflow or vanish in float32."""
    torch.manual_seed(0)
    for dim in (None, *range(len(shape))):
        v = torch.randn(shape)
        if dim is not None:
            for row, factor in zip(v.movedim(dim, 0), (0.0, 1e30, 1e-30), strict=False):
                row.mul_(factor)
        g = torch.randn(reference.gain_shape(shape, dim))
        for own, right in zip(
            decompositions.weight_norm(v, g, dim, eps),
            reference.weight_norm(v.double(), g.double(), dim, eps),
            strict=True,
        ):
            assert own.dtype == torch.float32
            torch.testing.assert_close(own.double(), right, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: wnfused.WNLinear(10, 3, activation="relu"),
        lambda: wnfused.WNConv1d(4, 6, 3, stride=2, padding=1, groups=2, dim=1),
        lambda: wnfused.WNConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, bias=False),
    ],
)
def test_decomposed_programs_compute_the_same(layer: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(layer()).eval()
    program = torch.export.export(model, (X,)).run_decompositions(dict(torch._decomp.decomposition_table))
    assert not any("wnfused" in str(node.target) for node in program.graph.nodes)
    close(program.module()(X), model(X))
