"""Layers on a device with little shared memory. Usage: python -m tests.support.driver.small BYTES

Prints, as JSON, the launches of a linear layer's forward and backward, the plans that replaced others, and how many
launches of a second step did not fit.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "0"

import torch

import wnfused
from tests.support.driver.fake import launching_nothing
from wnfused.kernels.triton import fitting


def main(shared: int) -> None:
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # its tiles differ most in size
    with launching_nothing() as fake:
        fake.library.fake_shared_memory(shared)
        layer, x = wnfused.WNLinear(256, 2048), torch.randn(4096, 256)
        x.requires_grad_()
        dy = torch.ones(4096, 2048)

        def step() -> None:
            layer(x).backward(dy)

        step()
        shrink, retries = fitting._shrink, []
        fitting._shrink = lambda *args: retries.append(args) or shrink(*args)
        fake.watch()
        step()
        plans = {problem.kernel: [plan.mode, plan.tile[0]] for (problem, _), plan in fitting.smaller.items()}
        print(json.dumps({"plans": plans, "retries": len(retries), "launches": len(fake.seen)}))  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]))
