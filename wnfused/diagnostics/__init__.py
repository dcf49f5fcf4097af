"""Diagnostics that show why an initialization works: signal propagation and the curvature of the loss."""

from wnfused.diagnostics.hessian import HessianNorm, hessian_norm
from wnfused.diagnostics.signal import LayerSignal, SignalReport, signal_report

__all__ = ["HessianNorm", "LayerSignal", "SignalReport", "hessian_norm", "signal_report"]
