"""scikit-learn's digits, the data set that needs no download: 1797 images of 8×8, enlarged to 3×32×32."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wnfused.data.splits import DataError, Split

TEST_IMAGES = 360  # a fifth; scikit-learn's set has no split of its own


def load_digits() -> tuple[Split, Split]:
    """(train, test); the split is always the same."""
    try:
        from sklearn import datasets
    except ImportError:
        raise DataError(
            "digits: the data comes with scikit-learn, which is not installed; run pip install scikit-learn"
        ) from None
    pixels, labels = datasets.load_digits(return_X_y=True)
    images, numbers = _enlarge(torch.from_numpy(pixels)), torch.from_numpy(labels.astype(np.int64))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return Split(images[train], numbers[train]), Split(images[test], numbers[test])


def _enlarge(pixels: Tensor) -> Tensor:
    """[N, 64] in 0..16 to uint8 [N, 3, 32, 32].

    The interpolation weights are multiples of 1/64, so float32 is exact and the bytes are the same on every machine.
    """
    small = pixels.float().reshape(-1, 1, 8, 8)
    large = F.interpolate(small, scale_factor=4, mode="bilinear") * (255 / 16)
    return large.round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous()
