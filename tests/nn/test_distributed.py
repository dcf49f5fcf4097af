"""DDP and FSDP2 on gloo: two processes with half of the batch each train as one process with all of it."""

import copy
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import wnfused
from tests.support.processes import WORLD, run_ranks
from tests.support.reference import assert_close
from wnfused import WNConv1d, WNConvTranspose1d, WNLinear

PATIENCE = 120  # seconds until deadlocked processes are terminated
STEPS = 3


def model() -> nn.Sequential:
    """Every kind of operator; most layers have a number of weight rows that does not divide evenly among processes."""
    torch.manual_seed(0)
    return nn.Sequential(
        WNConv1d(2, 5, 3, padding=1, activation="relu"),
        WNConvTranspose1d(5, 3, 2, stride=2, dim=1),
        nn.Flatten(),
        WNLinear(24, 7, activation="relu", eps=1e-3),
        WNLinear(7, 3, bias=False),
    ).double()


def batches() -> list[Tensor]:
    numbers = torch.Generator().manual_seed(1)
    return [torch.randn(6, 2, 4, dtype=torch.float64, generator=numbers) for _ in range(STEPS)]


def train(run: nn.Module, owner: nn.Module, share: slice) -> dict[str, Any]:
    """Train a few steps on ``share`` of each batch; returns the first gradients and the final parameters, unsharded."""
    optimizer = torch.optim.SGD(owner.parameters(), lr=0.05, momentum=0.9)
    first: dict[str, Tensor] = {}
    for x in batches():
        optimizer.zero_grad()
        run(x[share]).sin().sum(1).mean().backward()
        first = first or {name: whole(p.grad).clone() for name, p in owner.named_parameters() if p.grad is not None}
        torch.nn.utils.clip_grad_norm_(owner.parameters(), 0.5)
        optimizer.step()
    return {"gradients": first, "parameters": {name: whole(p.detach()) for name, p in owner.named_parameters()}}


def whole(t: Any) -> Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t


def with_ddp(share: slice) -> dict[str, Any]:
    own = model()
    return train(DistributedDataParallel(own), own, share)


def with_ddp_and_model_weights(share: slice) -> dict[str, Any]:
    own = model()
    with wnfused.model_weights(own):
        return train(DistributedDataParallel(own), own, share)


def with_fsdp_and_model_weights(share: slice) -> dict[str, Any]:
    """The root gathers all parameters before its forward."""
    own = fully_shard(model(), mesh=init_device_mesh("cpu", (WORLD,)))
    with wnfused.model_weights(own):
        return train(own, own, share)


def with_ddp_and_frozen_gains(share: slice) -> dict[str, Any]:
    own = model()
    for name, parameter in own.named_parameters():
        parameter.requires_grad_("weight_g" not in name)
    return train(DistributedDataParallel(own, static_graph=True), own, share)


def with_fsdp(share: slice) -> dict[str, Any]:
    """Shard each layer on its own, then the rest: parameters are weight rows, gathered only for the forward."""
    own = model()
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in own:
        if isinstance(layer, (WNConv1d, WNConvTranspose1d, WNLinear)):
            fully_shard(layer, mesh=mesh)
    fully_shard(own, mesh=mesh)
    assert isinstance(own, FSDPModule)
    v = own[3].weight_v
    assert isinstance(v, DTensor)
    results = train(own, own, share)
    results["rows"] = v.to_local().shape[0]
    results["state"] = {key: whole(value) for key, value in wnfused.state_dict(own).items()}
    return results


def with_fsdp_in_bfloat16(share: slice) -> dict[str, Any]:
    """Parameters are float32 rows, gathered and used as bfloat16."""
    own = fully_shard(
        model().float(),
        mesh=init_device_mesh("cpu", (WORLD,)),
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    y = own(batches()[0][share].float())
    y.float().sin().sum(1).mean().backward()
    return {"y": y.detach(), "gradients": {name: whole(p.grad) for name, p in own.named_parameters()}}


MODES: dict[str, Callable[[slice], dict[str, Any]]] = {
    "ddp": with_ddp,
    "ddp with frozen gains": with_ddp_and_frozen_gains,
    "ddp with model weights": with_ddp_and_model_weights,
    "fsdp with model weights": with_fsdp_and_model_weights,
    "fsdp": with_fsdp,
}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=PATIENCE / 2),
    )
    share = slice(rank * 6 // WORLD, (rank + 1) * 6 // WORLD)
    results = {mode: run(share) for mode, run in MODES.items()}
    torch.save({**results, "bfloat16": with_fsdp_in_bfloat16(share)}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each process in every mode; the processes are started once for all tests."""
    folder: Path = tmp_path_factory.mktemp("gloo")
    run_ranks(worker, folder, PATIENCE)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("mode", MODES)
def test_trains_as_one_process_on_the_whole_batch(trained: list[dict[str, Any]], mode: str) -> None:
    own = model()
    for name, parameter in own.named_parameters():
        parameter.requires_grad_(not (mode.endswith("frozen gains") and "weight_g" in name))
    start = copy.deepcopy(own)
    wanted = train(own, own, slice(None))
    for results in trained:
        for kind in ("gradients", "parameters"):
            assert results[mode][kind].keys() == wanted[kind].keys()
            for name, value in wanted[kind].items():
                assert_close(results[mode][kind][name], value, what=f"{mode}: {kind}: {name}")
    moved = {name for name, p in start.named_parameters() if not torch.equal(p, wanted["parameters"][name])}
    assert moved == {name for name, p in own.named_parameters() if p.requires_grad}


def test_fsdp_keeps_rows(trained: list[dict[str, Any]]) -> None:
    """Seven rows in two processes: four and three, each with its own gains."""
    assert [results["fsdp"]["rows"] for results in trained] == [4, 3]


def test_fsdp_state_dict_loads_into_one_process(trained: list[dict[str, Any]]) -> None:
    fresh = model()
    fresh.load_state_dict(trained[0]["fsdp"]["state"])
    for name, parameter in fresh.named_parameters():
        assert torch.equal(parameter, trained[0]["fsdp"]["parameters"][name])


def test_fsdp_with_16_bit_parameters(trained: list[dict[str, Any]]) -> None:
    own = model()
    own(batches()[0]).sin().sum(1).mean().backward()
    for results in trained:
        assert results["bfloat16"]["y"].dtype == torch.bfloat16
        for name, parameter in own.named_parameters():
            gradient, wanted = results["bfloat16"]["gradients"][name], parameter.grad
            assert wanted is not None and gradient.dtype == torch.float32
            assert (gradient - wanted).abs().max() < 0.1 * wanted.abs().max(), name
