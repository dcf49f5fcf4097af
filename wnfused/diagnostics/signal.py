"""How the norms of activations and of their gradients develop from layer to layer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from wnfused.diagnostics import plots
from wnfused.diagnostics.state import unchanged


@dataclass(frozen=True)
class LayerSignal:
    """Norms at one module's output, sample by sample, relative to the input and to the output's gradient."""

    name: str  # the module's, with " #2" and so on for its later calls
    shape: tuple[int, ...]  # of one sample's output
    forward_mean: float  # of ‖h‖ / ‖x‖
    forward_std: float
    backward_mean: float  # of ‖∂ℓ/∂h‖ / ‖∂ℓ/∂y‖; NaN where no gradient came
    backward_std: float


@dataclass(frozen=True)
class SignalReport:
    layers: tuple[LayerSignal, ...]  # in the order they ran

    def table(self) -> str:
        """The report as aligned text."""
        width = max(len(layer.name) for layer in self.layers)
        lines = [f"{'layer':<{width}}  {'‖h‖/‖x‖':>19}  {'‖dh‖/‖dy‖':>19}"]
        for s in self.layers:
            forward = f"{s.forward_mean:>9.3g} ± {s.forward_std:<7.2g}"
            lines.append(f"{s.name:<{width}}  {forward}  {s.backward_mean:>9.3g} ± {s.backward_std:<7.2g}".rstrip())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def plot(self, path: str | Path) -> Path:
        """Both curves over depth, mean and standard deviation, written to ``path`` (PNG, PDF or SVG by its suffix)."""
        forward = [(s.forward_mean, s.forward_std) for s in self.layers]
        backward = [(s.backward_mean, s.backward_std) for s in self.layers]
        return plots.signal(forward, backward, Path(path))


def signal_report(
    model: nn.Module,
    x: Tensor,
    *,
    loss_fn: Callable[[Tensor], Tensor] | None = None,
    modules: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
) -> SignalReport:
    """Norms of activations and of their gradients at every leaf module's output, or at those of the named ``modules``.

    ``x`` is a batch, its first dimension the samples; a norm is that of one sample's whole tensor. ``loss_fn`` takes
    the model's output; by default the gradient at the output is random, one normal vector a sample. The model, its
    gradients, buffers and mode stay as they were.
    """
    if x.ndim < 2 or len(x) == 0:
        raise ValueError(f"signal_report: x: expected a batch of at least one sample, got shape {tuple(x.shape)}")
    watched = _watched(model, modules)
    with unchanged(model), _recording(watched, len(x)) as records, torch.enable_grad():
        y = model(x.detach().requires_grad_(x.is_floating_point()))
        if not isinstance(y, Tensor):
            raise TypeError(f"signal_report: model: expected one tensor as output, got {type(y).__name__}")
        error = _gradient_at(y, loss_fn, generator)
        torch.autograd.backward(y, error)
    if not records:
        raise ValueError("signal_report: modules: none of them ran on this input")
    return SignalReport(tuple(record.signal(_norms(x), _norms(error)) for record in records))


def _watched(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Module]:
    every = dict(model.named_modules(remove_duplicate=names is None))
    if names is None:
        return {name or "(model)": m for name, m in every.items() if not any(True for _ in m.children())}
    unknown = [name for name in names if name not in every]
    if unknown:
        raise ValueError(f"signal_report: modules: the model has no module named {unknown[0]!r}")
    return {name: every[name] for name in names}


def _norms(t: Tensor) -> Tensor:
    """One norm a sample."""
    return t.detach().flatten(1).double().norm(dim=1)


def _gradient_at(y: Tensor, loss_fn: Callable[[Tensor], Tensor] | None, generator: torch.Generator | None) -> Tensor:
    if loss_fn is None:
        return torch.randn(y.shape, generator=generator, device=y.device, dtype=torch.float32).to(y.dtype)
    leaf = y.detach().requires_grad_()
    (error,) = torch.autograd.grad(loss_fn(leaf), leaf)
    return error


@dataclass
class _Record:
    name: str
    shape: tuple[int, ...]
    forward: Tensor
    backward: Tensor | None = None

    def signal(self, x: Tensor, error: Tensor) -> LayerSignal:
        forward = self.forward / x
        backward = self.backward / error if self.backward is not None else torch.tensor([float("nan")])
        return LayerSignal(self.name, self.shape, *_mean_and_std(forward), *_mean_and_std(backward))


def _mean_and_std(values: Tensor) -> tuple[float, float]:
    return values.mean().item(), values.std(correction=0).item()


@contextmanager
def _recording(watched: dict[str, nn.Module], samples: int) -> Iterator[list[_Record]]:
    """Records every call of the watched modules whose output is a batch of these samples."""
    records: list[_Record] = []
    calls: dict[str, int] = {}

    def hook_for(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, args: object, output: object) -> None:
            if not isinstance(output, Tensor) or not output.is_floating_point() or output.shape[:1] != (samples,):
                return
            calls[name] = calls.get(name, 0) + 1
            label = name if calls[name] == 1 else f"{name} #{calls[name]}"
            record = _Record(label, tuple(output.shape[1:]), _norms(output))
            records.append(record)
            if output.requires_grad:  # the hook stays with this value if an in-place operation changes it later
                output.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: setattr(record, "backward", _norms(gradient))
                )

        return hook

    handles = [module.register_forward_hook(hook_for(name)) for name, module in watched.items()]
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()
