"""The plan of a problem: the fastest one that ``wnfused tune`` measured on this device, or the rule's.

The fastest plans are stored in one JSON file per device, keyed by bucketed shape and versioned by triton, torch, cuDNN,
device and kernel source. A file that is corrupt or was written for another version is ignored, with one log line.
"""

import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from triton.errors import TritonError

from wnfused.files import write_atomically
from wnfused.kernels.triton import fitting, replay, rules, support, table
from wnfused.kernels.triton.rules import Plan, Problem
from wnfused.kernels.triton.tiles import Tile, shipped_tiles, single_pass_pays, tiles_for

log = logging.getLogger("wnfused")


def plan(problem: Problem, device: torch.device) -> Plan:
    key = rules.bucketed(problem), device
    return fitting.noted(key, fitting.smaller.get(key) or _plan(*key))


@functools.lru_cache(maxsize=4096)
def _plan(problem: Problem, device: torch.device) -> Plan:
    return _winners(device).get(problem) or rules.plan_by_rule(problem, support.target_of(device))


# --- the file ---------------------------------------------------------------------------------------------------------


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"


def cache_file(device: torch.device) -> Path:
    """The file for this kind of device, in ``$WNFUSED_TUNE_DIR`` or in wnfused's directory of the user's cache."""
    folder = os.environ.get("WNFUSED_TUNE_DIR")
    root = Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wnfused"
    return root / f"tune-{device_name(device).replace(' ', '-').replace('/', '-')}.json"


@functools.cache
def source_digest() -> str:
    """A fingerprint of the kernels, tiles and launches, for which the stored plans are valid."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _header(device: torch.device) -> dict[str, str]:
    import triton

    return {
        "triton": triton.__version__,
        "torch": torch.__version__,
        "cuDNN": str(torch.backends.cudnn.version()),  # the vendor's libraries are candidates
        "device": device_name(device),
        "kernels": source_digest(),
    }


@functools.cache
def _winners(device: torch.device) -> dict[Problem, Plan]:
    try:
        file = cache_file(device)
    except RuntimeError:  # a user without a home directory has no stored plans
        return {}
    try:
        content = json.loads(file.read_text())
        header = _header(device)
        differs = [name for name, value in header.items() if content["made for"][name] != value]
        if differs:
            log.warning("tuned plans in %s are not used: made for another %s", file, " and ".join(differs))
            return {}
        return {_problem(entry["problem"]): _read_plan(entry["plan"]) for entry in content["winners"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("tuned plans in %s are not used: %s cannot be read as such (%r)", file, file.name, error)
        return {}


def _problem(fields: list[Any]) -> Problem:
    problem = Problem(*fields)
    kinds = [str, int, int, int, str, int, bool, bool, bool]
    if [type(field) for field in problem] != kinds:
        raise ValueError(f"not a problem: {fields!r}")
    return problem


def _read_plan(fields: list[Any]) -> Plan:
    mode, tile, splits = fields
    if mode not in rules.MODES or Tile(*tile) not in shipped_tiles() or not 1 <= splits <= 32:
        raise ValueError(f"not a plan: {fields!r}")
    return Plan(mode, Tile(*tile), splits)


def save(winners: dict[Problem, Plan], device: torch.device) -> Path:
    """Add the winners to the device's file, atomically."""
    file = cache_file(device)
    merged = {**_winners(device), **winners}
    entries = [{"problem": list(problem), "plan": [p.mode, list(p.tile), p.splits]} for problem, p in merged.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps({"made for": _header(device), "winners": entries}, indent=1).encode())
    forget()
    return file


def forget() -> None:
    """Read the file again when a plan is next requested."""
    _winners.cache_clear()
    _plan.cache_clear()
    table.forget()
    replay.forget()


# --- measuring --------------------------------------------------------------------------------------------------------


def candidates(problem: Problem, target: rules.Target) -> Iterator[Plan]:
    """The rule's plan first, then all others: every tile and mode, with and without split-K."""
    first = rules.plan_by_rule(problem, target)
    yield first
    splittable = problem.kernel in ("linear", "linear_dw", "weight_gradient")
    for tile in tiles_for(problem.kernel, target.family, problem.dtypes, problem.aligned):
        for mode in _modes(problem, tile, target.family):
            for splits in (1, 4, 16) if splittable else (1,):
                if splits <= max(1, problem.k // tile.k) and (mode, tile, splits) != first:
                    yield Plan(mode, tile, splits)
    if first.mode != "vendor":
        yield Plan("vendor", first.tile)


def _modes(problem: Problem, tile: Tile, family: str) -> tuple[str, ...]:
    if problem.kernel == "linear_dx":
        return ("scaled first", "in registers")
    if problem.kernel == "linear_dw":
        return ("two steps",)
    single = problem.single_pass_allowed and single_pass_pays(tile, family, problem.dtypes)
    return ("norms first", "single pass") if single else ("norms first",)


def tune(
    problems: Iterable[Problem], device: torch.device, seconds: Callable[[Problem, Plan], float]
) -> dict[Problem, Plan]:
    """The fastest plan of each problem; ``seconds`` measures one, and raises where it does not fit the device.

    An error of the device itself ends the tuning, because later measurements would be meaningless.
    """
    target, winners = support.target_of(device), {}
    for problem in map(rules.bucketed, problems):
        times: dict[Plan, float] = {}
        for candidate in candidates(problem, target):
            try:
                times[candidate] = seconds(problem, candidate)
            except torch.AcceleratorError:
                raise
            except (RuntimeError, TritonError) as error:  # too much shared memory, too many registers
                log.info("%s with %s: %s", problem.kernel, candidate, str(error).splitlines()[0])
        if times:
            winners[problem] = min(times, key=times.__getitem__)
    return winners
