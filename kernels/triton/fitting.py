"""Retries a call whose tile does not fit the device: with the next smaller tile, then on the vendor path.

Shared memory differs between GPUs of one family (sm_86, sm_89 and sm_120 have 100 kB, sm_80 has 164). A problem's new
plan is remembered for the rest of the process.
"""

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from wnfused.kernels.triton import support
from wnfused.kernels.triton.launch import DoesNotFit, Launch
from wnfused.kernels.triton.rules import Plan, Problem
from wnfused.kernels.triton.tiles import tiles_for

log = logging.getLogger("wnfused")
Key = tuple[Problem, torch.device]
Function = TypeVar("Function", bound=Callable[..., Any])
smaller: dict[Key, Plan] = {}  # plans that replace the rule's and the tuner's
_state = threading.local()


def noted(key: Key, plan: Plan) -> Plan:
    """``plan``, noted as one of the current call."""
    plans = getattr(_state, "plans", None)
    if plans is not None:
        plans[key] = plan
    return plan


def retried(function: Function) -> Function:
    """``function``, called again with smaller tiles while a launch does not fit."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        outer = getattr(_state, "plans", None)
        try:
            while True:
                _state.plans = {}
                try:
                    return function(*args)
                except DoesNotFit as error:
                    if not _shrink(_state.plans, error.launch):
                        raise error.__cause__ or error from None
        finally:
            _state.plans = outer

    return run  # type: ignore[return-value]


def _shrink(plans: dict[Key, Plan], launch: Launch) -> bool:
    """Replace the plans with the launch's tile; False if no plan has it."""
    found = False
    for (problem, device), plan in plans.items():
        tile = plan.tile
        if plan.mode == "vendor" or tile != launch.tile:
            continue
        tiles = tiles_for(problem.kernel, support.target_of(device).family, problem.dtypes, problem.aligned)
        left = tiles[tiles.index(tile) + 1 :] if tile in tiles else ()
        smaller[problem, device] = plan._replace(tile=left[0]) if left else Plan("vendor", tile)
        log.info(
            "%s: tile %s does not fit this device; %s instead", problem.kernel, tile, left[0] if left else "vendor"
        )
        found = True
    return found
