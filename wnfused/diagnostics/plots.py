"""Plots of the diagnostics."""

from pathlib import Path

from wnfused import plotting

Curve = list[tuple[float, float]]  # mean and standard deviation of each layer


def signal(forward: Curve, backward: Curve, path: Path) -> Path:
    """Two panels over depth on a logarithmic axis: activations and gradients."""
    figure = plotting.figure(figsize=(8.0, 3.2), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    for panel, curve, title in zip(
        panels, (forward, backward), ("activations  ‖h‖ / ‖x‖", "gradients  ‖dh‖ / ‖dy‖"), strict=True
    ):
        layers = range(1, len(curve) + 1)
        means = [mean for mean, _ in curve]
        panel.plot(layers, means, color=plotting.COLOURS[0], linewidth=1.6)
        lower = [max(mean - std, mean * 1e-2) for mean, std in curve]  # a band down to zero has no logarithm
        upper = [mean + std for mean, std in curve]
        panel.fill_between(layers, lower, upper, color=plotting.COLOURS[0], alpha=0.2, linewidth=0)
        panel.axhline(1.0, color="#888888", linewidth=0.8, linestyle=":")
        panel.set(title=title, xlabel="layer", yscale="log")
        plotting.integer_ticks(panel.xaxis)
        low, high = panel.get_ylim()
        plotting.log_scale(panel, min(low, 0.5), max(high, 2.0))
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
