"""Instruments that show why an initialization works: signal propagation and the loss's curvature."""

from wnfused.diagnostics.hessian import HessianNorm, hessian_norm
from wnfused.diagnostics.signal import LayerSignal, SignalReport, signal_report

__all__ = ["HessianNorm", "LayerSignal", "SignalReport", "hessian_norm", "signal_report"]
