"""Figure 1: the norms of signal and gradient over depth, at initialization, without training."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wnfused import init
from wnfused.diagnostics import signal_report
from wnfused.experiments.catalog import Experiment
from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.plots import axes, color, label, legend
from wnfused.experiments.results import Findings, Table
from wnfused.experiments.sweep import Sweep
from wnfused.models import MLP
from wnfused.nn import WNLinear
from wnfused.plotting import integer_ticks

INITS = ("he", "robust", "robust_he")
FAMILIES = {"mlp": "plain MLP", "residual": "residual network"}


@dataclass(frozen=True)
class Setting:
    inputs: int  # dimension of the inputs, and of the residual stream
    samples: int
    layers: int  # of the MLP
    blocks: int  # of the residual network
    widths: Sequence[int]  # of the MLP ± 50, and of the hidden layers of blocks
    deviations: Sequence[str] = ()


SMOKE = Setting(64, 50, 8, 10, (60,), ["Width 60, 8 layers, 10 blocks: shows that the command works, nothing else."])
PAPER = Setting(500, 1000, 20, 40, (200, 1000))


class Block(nn.Module):
    """``x + FC2(ReLU(FC1(x)))``."""

    def __init__(self, stream: int, hidden: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(WNLinear(stream, hidden, activation="relu"), WNLinear(hidden, stream))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def measure(settings: dict[str, Any], data_dir: str | None) -> Outcome:
    """[mean, std] of both ratios at every layer of one network."""
    start = time.perf_counter()
    numbers = torch.Generator().manual_seed(settings["seed"])
    torch.manual_seed(settings["seed"])
    width, inputs = settings["width"], settings["inputs"]
    if settings["family"] == "mlp":
        widths = torch.randint(width - 50, width + 51, (settings["layers"],), generator=numbers).tolist()
        model: nn.Sequential = MLP(len(widths), widths, inputs=inputs).hidden
    else:
        model = nn.Sequential(*(Block(inputs, width) for _ in range(settings["blocks"])))
    x = torch.randn(settings["samples"], inputs, generator=numbers)
    if settings["init"] == "he":
        init.he_(model, generator=numbers)
    else:
        distribution = "he" if settings["init"] == "robust_he" else "orthogonal"
        init.robust_(model, x[:2], distribution=distribution, generator=numbers)
    names = [name for name, _ in model.named_children()]
    layers = signal_report(model, x, modules=names, generator=numbers).layers
    return {
        "forward": [[_short(layer.forward_mean), _short(layer.forward_std)] for layer in layers],
        "backward": [[_short(layer.backward_mean), _short(layer.backward_std)] for layer in layers],
        "seconds": round(time.perf_counter() - start, 1),
    }


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def run(setting: Setting, sweep: Sweep) -> Findings:
    cases = [(f, w, i) for f in FAMILIES for w in setting.widths for i in INITS]
    common = {"inputs": setting.inputs, "samples": setting.samples, "seed": 0}
    sizes = {"mlp": {"layers": setting.layers}, "residual": {"blocks": setting.blocks}}
    jobs = [Job("propagation:measure", {"family": f, "width": w, "init": i, **common, **sizes[f]}) for f, w, i in cases]
    found = dict(zip(cases, sweep.run("networks", jobs), strict=True))
    figures = {direction: _figure(setting, found, direction) for direction in ("forward", "backward")}
    rows = [
        [FAMILIES[f], str(w), label(i), _ratio(found[f, w, i]["forward"][-1]), _ratio(found[f, w, i]["backward"][0])]
        for f, w, i in cases
    ]
    head = ["network", "width", "initialization", "‖h‖/‖x‖ at the end", "‖∂ℓ/∂h‖/‖∂ℓ/∂y‖ at the start"]
    numbers = {f"{f}, {w}, {i}": outcome for (f, w, i), outcome in found.items()}
    return Findings(numbers, {"Both ends": Table(head, rows)}, figures, [PAPER_SAYS], setting.deviations)


def _ratio(pair: Sequence[float]) -> str:
    return f"{pair[0]:.3g} ± {pair[1]:.2g}"


def _figure(setting: Setting, found: dict[tuple[str, int, str], Outcome], direction: str) -> Any:
    cases = [(family, width) for family in FAMILIES for width in setting.widths]
    figure, panels = axes(len(setting.widths), rows=len(FAMILIES), height=3.0, sharey="row")
    for panel, (family, width) in zip(panels, cases, strict=True):
        for name in INITS:
            mean, std = (torch.tensor(values) for values in zip(*found[family, width, name][direction], strict=True))
            depth = range(1, len(mean) + 1)
            dashes = "--" if name == "robust_he" else "-"  # it lies on the curve of "robust"
            panel.plot(depth, mean, dashes, color=color(name), label=label(name))
            panel.fill_between(depth, (mean - std).clamp_min(1e-30), mean + std, color=color(name), alpha=0.2)
        unit = "layer" if family == "mlp" else "block"
        ratio = "‖h‖ / ‖x‖" if direction == "forward" else "‖∂ℓ/∂h‖ / ‖∂ℓ/∂y‖"
        panel.set(yscale="log", title=f"{FAMILIES[family]}, width {width}", xlabel=unit, ylabel=ratio)
        integer_ticks(panel.xaxis)
    legend(figure, columns=len(INITS))
    return figure


PAPER_SAYS = """Figure 1 of the paper: with the proposed initialization both norms stay near 1 in a plain network and
end within [√2, √e] in a residual one; He's weights with g = 1 vanish or explode. Gradients are true ones, of random
errors at the output; the authors' notebook masks those of residual networks by the wrong sign."""

EXPERIMENT = Experiment(
    "Norms of signal and gradient over depth (figure 1)",
    "figure 1: norms of signal and gradient over depth at initialization, plain and residual",
    {"smoke": SMOKE, "small": PAPER, "paper": PAPER},
    run,
)
