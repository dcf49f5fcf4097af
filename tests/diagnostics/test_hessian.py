"""The norm of the Hessian, against the full Hessian of small networks."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import wnfused
from wnfused.diagnostics import hessian_norm


def small_network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(wnfused.WNLinear(3, 4, activation="relu"), wnfused.WNLinear(4, 3)).to(dtype)


def full_hessian(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    parameters = list(model.parameters())
    shapes, sizes = [p.shape for p in parameters], [p.numel() for p in parameters]
    names = [name for name, _ in model.named_parameters()]
    x, y = (torch.cat(t) for t in zip(*batches, strict=True))

    def loss(flat: Tensor) -> Tensor:
        values = {n: t.view(s) for n, t, s in zip(names, flat.split(sizes), shapes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, values, (x,)), y)

    return torch.autograd.functional.hessian(loss, torch.cat([p.detach().flatten() for p in parameters]))


def data(sizes: tuple[int, ...] = (7, 7, 4)) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(5)
    return [(torch.randn(n, 3, dtype=torch.float64), torch.randint(3, (n,))) for n in sizes]


@pytest.mark.parametrize("method", ["power", "lanczos"])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_against_the_full_hessian(method: str, backend: str) -> None:
    """Batches of unlike sizes weigh by their samples."""
    with wnfused.backend(backend):
        model, batches = small_network(), data()
        hessian = full_hessian(model, batches)
        wanted = torch.linalg.eigvalsh(hessian).abs().max().item()
        result = hessian_norm(model, F.cross_entropy, batches, method=method, iterations=500, tolerance=1e-6)
    assert result.converged and result.value == pytest.approx(wanted, rel=1e-3)
    assert result.value == abs(result.eigenvalue) and len(result.history) == result.iterations
    assert (hessian - hessian.T).abs().max() < 1e-12  # which torch's own weight_norm does not give


class Pooled(nn.Module):
    """A small residual convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = wnfused.WNConv2d(1, 3, 3, stride=2, padding=1, activation="relu")
        self.branch = wnfused.WNConv2d(3, 3, 3, padding=1)
        self.head = wnfused.WNLinear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.branch(x)).mean((2, 3)))


def images(count: int = 12) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(6)
    return [(torch.randn(count, 1, 6, 6, dtype=torch.float64), torch.randint(3, (count,)))]


def test_a_convolutional_network_against_its_full_hessian() -> None:
    torch.manual_seed(4)
    model, batches = Pooled().double(), images()
    wanted = torch.linalg.eigvalsh(full_hessian(model, batches)).abs().max().item()
    result = hessian_norm(model, F.cross_entropy, batches, method="lanczos", iterations=500, tolerance=1e-6)
    assert result.converged and result.value == pytest.approx(wanted, rel=1e-3)


def test_torchs_own_weight_norm_is_warned_of() -> None:
    """Its double backward is wrong: the Hessian is not symmetric, and its norm another than the converted model's."""
    model = nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.Tanh(), weight_norm(nn.Linear(4, 3))).double()
    batches = data()
    wrong = full_hessian(model, batches)
    assert (wrong - wrong.T).abs().max() > 1e-3 * wrong.abs().max()
    with pytest.warns(UserWarning, match="hessian_norm: model: torch's weight_norm, on '0', '2', has a wrong double"):
        hessian_norm(model, F.cross_entropy, batches, iterations=2)
    wnfused.convert(model)
    right = full_hessian(model, batches)
    assert (right - right.T).abs().max() < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = hessian_norm(model, F.cross_entropy, batches, method="lanczos", tolerance=1e-6)
    assert result.value == pytest.approx(torch.linalg.eigvalsh(right).abs().max().item(), rel=1e-3)


def test_between_two_eigenvalues_it_does_not_settle() -> None:
    """Where λ and -λ are both there the Rayleigh quotient stands still at neither."""
    model = nn.Linear(2, 1, bias=False).double()
    x = torch.ones(1, 2, dtype=torch.float64)

    def saddle(y: Tensor, _: Tensor) -> Tensor:
        a, b = model.weight[0]
        return a**2 - b**2 + 0 * y.sum()

    assert not hessian_norm(model, saddle, [(x, x)], iterations=20).converged
    result = hessian_norm(model, saddle, [(x, x)], method="lanczos")
    assert result.converged and result.value == pytest.approx(2)


def test_dropout_draws_the_same_numbers_in_every_iteration() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(wnfused.WNLinear(3, 6, activation="relu"), nn.Dropout(), wnfused.WNLinear(6, 3)).double()
    result = hessian_norm(model, F.cross_entropy, data(), iterations=300, tolerance=1e-6)
    assert result.converged and model.training


def test_the_model_stays_as_it_was() -> None:
    model = nn.Sequential(wnfused.WNLinear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), wnfused.WNLinear(4, 3)).double()
    model[0].weight_g.grad = torch.ones_like(model[0].weight_g)
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    batches = [(x.clone(), y) for x, y in data()]
    random = torch.get_rng_state()
    hessian_norm(model, F.cross_entropy, batches, iterations=2)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model[0].weight_g.grad, torch.ones_like(model[0].weight_g)) and model[3].bias.grad is None
    assert torch.equal(torch.get_rng_state(), random) and model.training


def test_a_negative_eigenvalue_can_be_the_largest() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    x = torch.ones(2, 1, dtype=torch.float64)
    result = hessian_norm(model, lambda y, _: -3 * y.square().mean(), [(x, x)])
    assert result.eigenvalue == pytest.approx(-6) and result.value == pytest.approx(6)


def test_a_linear_loss_has_no_curvature() -> None:
    model = nn.Linear(2, 1).double()
    x = torch.ones(2, 2, dtype=torch.float64)
    assert hessian_norm(model, lambda y, _: y.mean(), [(x, x)]).value == 0.0


def test_lanczos_needs_fewer_products() -> None:
    model, batches = small_network(), data()
    power = hessian_norm(model, F.cross_entropy, batches, iterations=500, tolerance=1e-6)
    assert hessian_norm(model, F.cross_entropy, batches, method="lanczos", tolerance=1e-6).iterations < power.iterations


def test_it_says_when_the_iterations_ran_out(capsys: pytest.CaptureFixture[str]) -> None:
    result = hessian_norm(small_network(), F.cross_entropy, data(), iterations=2, progress=True)
    assert not result.converged and result.iterations == 2
    assert "2/2" in capsys.readouterr().err


def test_frozen_parameters_are_constants() -> None:
    model, batches = small_network(), data()
    for p in model[0].parameters():
        p.requires_grad_(False)
    part = full_hessian(model, batches)[-(12 + 3 + 3) :, -(12 + 3 + 3) :]
    wanted = torch.linalg.eigvalsh(part).abs().max().item()
    assert hessian_norm(model, F.cross_entropy, batches, iterations=500, tolerance=1e-6).value == pytest.approx(
        wanted, rel=1e-3
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": []}, "batches: expected at least one batch"),
        ({"method": "guess"}, "method: expected 'power' or 'lanczos', got 'guess'"),
        ({"iterations": 0}, "iterations: expected at least 1, got 0"),
        ({"tolerance": 0.0}, "tolerance: expected more than 0, got 0.0"),
        ({"model": nn.ReLU()}, "model: it has no parameters"),
        ({"loss_fn": lambda y, t: y.sum() * float("nan")}, "loss_fn: the loss is nan"),
        (
            {"loss_fn": lambda y, t: (y - y).abs().pow(1.5).sum()},
            "model: the loss is finite, but its second derivative is",
        ),
    ],
)
def test_bad_arguments(change: dict[str, object], message: str) -> None:
    arguments = {"model": small_network(), "loss_fn": F.cross_entropy, "batches": data(), **change}
    with pytest.raises(ValueError, match=f"hessian_norm: {message}"):
        hessian_norm(**arguments)


def test_batches_must_be_a_list() -> None:
    """A loader gives other batches each time, a generator none the second time."""
    with pytest.raises(TypeError, match=r"hessian_norm: batches: expected a list of \(input, target\), got generator"):
        hessian_norm(small_network(), F.cross_entropy, (batch for batch in data()))
