"""Random streams by name: each is a function of its names and numbers alone, so no random state has to be stored."""

import hashlib

import torch


def generator(*names: object) -> torch.Generator:
    """A CPU generator for the stream ``names``, as ("order", seed, epoch); equal names give equal numbers.

    The names are hashed, so that neighbours (seed 1 of epoch 2, seed 2 of epoch 1) have nothing in common.
    """
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
