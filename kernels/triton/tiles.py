"""Tile shapes of the matmul-like kernels: what is shipped, compiled by the audit and offered to the tuner."""

from typing import NamedTuple


class Tile(NamedTuple):
    """A program's share: m × n results summed k at a time, by this many warps, with loads this many stages ahead."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} w{self.warps} s{self.stages}"


# By target family, then by element size of the activations in bytes; largest first.
# sm_80 multiplies from registers, so k stays short; wgmma and tcgen05 read shared memory and want k of 128 bytes.
# gfx942 has 64 kB of shared memory and wavefronts of 64.
TILES: dict[str, dict[int, tuple[Tile, ...]]] = {
    "sm_80": {
        2: (Tile(128, 128, 32, 4, 3), Tile(64, 128, 32, 4, 4), Tile(64, 64, 64, 4, 4), Tile(16, 64, 64, 4, 5)),
        4: (Tile(128, 128, 32, 8, 3), Tile(64, 64, 32, 4, 4), Tile(16, 64, 32, 4, 5)),
    },
    "sm_90": {
        2: (Tile(128, 128, 64, 8, 3), Tile(64, 128, 64, 4, 4), Tile(64, 64, 64, 4, 4), Tile(16, 64, 64, 4, 5)),
        4: (Tile(128, 128, 32, 8, 3), Tile(64, 64, 32, 4, 4), Tile(16, 64, 32, 4, 5)),
    },
    "sm_100": {
        2: (Tile(128, 128, 64, 8, 3), Tile(64, 128, 64, 4, 4), Tile(64, 64, 64, 4, 4), Tile(16, 64, 64, 4, 5)),
        4: (Tile(128, 128, 32, 8, 3), Tile(64, 64, 32, 4, 4), Tile(16, 64, 32, 4, 5)),
    },
    "gfx942": {
        2: (Tile(128, 128, 32, 4, 2), Tile(64, 64, 64, 4, 2), Tile(16, 64, 64, 4, 2)),
        4: (Tile(128, 64, 32, 4, 2), Tile(64, 64, 32, 4, 2), Tile(16, 64, 32, 4, 2)),
    },
}
