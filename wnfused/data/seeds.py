"""Named random streams: each depends only on its names and numbers, so no random state has to be saved."""

import hashlib

import torch


def generator(*names: object) -> torch.Generator:
    """A CPU generator for the stream ``names``, e.g. ("order", seed, epoch); equal names give equal numbers.

    The names are hashed, so related streams (seed 1 of epoch 2, seed 2 of epoch 1) are independent.
    """
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
