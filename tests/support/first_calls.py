"""Run by test_in_place.py in a separate process: the first call of every layer, followed by an in-place operation.

Each case runs in a fork of a process that has not called an operator yet, because the first call of a process takes
another path than the second (the native library is loaded in between). Prints one line for each case that fails.
"""

import os
import sys
import traceback
import warnings
from itertools import product

import torch
from torch import nn
from torch.nn.utils import weight_norm

import wnfused

torch.backends.cudnn.allow_tf32 = False  # on by default for convolutions, which are compared with exact products here

LAYERS = {
    "Linear": (lambda: nn.Linear(6, 5), (3, 6)),
    "Linear, many rows": (lambda: nn.Linear(6, 5), (20, 6)),
    "Linear, 3-d input": (lambda: nn.Linear(6, 5), (2, 4, 6)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "Conv1d, one short signal": (lambda: nn.Conv1d(80, 128, 7, padding=3), (1, 80, 5)),
    "Conv1d, unbatched": (lambda: nn.Conv1d(4, 6, 3), (4, 9)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2), (2, 4, 7, 5)),
    "Conv3d": (lambda: nn.Conv3d(4, 6, 3, groups=2), (2, 4, 5, 4, 3)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 4, stride=2), (2, 4, 9)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 4)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 6, 2), (2, 4, 3, 4, 3)),
}
IN_PLACE = {
    "relu_": lambda y: y.relu_(),
    "add_": lambda y: y.add_(2.0),
    "mul_": lambda y: y.mul_(3.0),
    "write to a slice": lambda y: y[0].zero_() if y.ndim else y,
    "copy_": lambda y: y.copy_(y * 2),
    "ReLU": nn.ReLU(inplace=True),
    "LeakyReLU": nn.LeakyReLU(0.1, inplace=True),
    "ELU": nn.ELU(inplace=True),
    "SiLU": nn.SiLU(inplace=True),
    "Hardtanh": nn.Hardtanh(inplace=True),
    "Dropout": nn.Dropout(0.0, inplace=True),
}


def gradients(layer, x, in_place):
    x = x.clone().requires_grad_()
    y = layer(x)
    in_place(y)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for _, p in sorted(layer.named_parameters()))]


def check(make, shape, in_place):
    torch.manual_seed(0)
    theirs, ours = weight_norm(make()), weight_norm(make())
    ours.load_state_dict(theirs.state_dict())
    wnfused.convert(ours)
    x = torch.randn(shape)
    for result, expected in zip(gradients(ours, x, in_place), gradients(theirs, x, in_place), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def fails(name, operation):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    try:
        check(*LAYERS[name], IN_PLACE[operation])
    except BaseException:
        traceback.print_exc(limit=-1)
        os._exit(1)
    os._exit(0)


def prepare():
    """Import modules that every fork would otherwise import at first use. No wnfused operator is called."""
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    layer = weight_norm(nn.Linear(2, 2))
    torch.testing.assert_close(*gradients(layer, torch.ones(1, 2), torch.relu_)[:1] * 2)
    wnfused.convert(layer)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    prepare()
    if sys.argv[1:] == ["each once"]:  # triton's interpreter takes seconds for a case
        cases = list(zip(LAYERS, IN_PLACE, strict=True))
    else:
        cases = list(product(LAYERS, IN_PLACE))
    failed = [f"{name}, then {operation}" for name, operation in cases if fails(name, operation)]
    sys.stdout.write("\n".join([*failed, f"{len(cases)} cases, {len(failed)} failed\n"]))
