"""Where the data sets come from: addresses, sizes and SHA-256 of the downloaded files.

docs/data.md gives the sources of these facts.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One file: the web folders that provide it, tried in turn, and its expected size and checksum."""

    file: str
    folders: tuple[str, ...]  # each ends in /
    size: int
    sha256: str


IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

# The first is MNIST's home page, which often refuses; torchvision and TensorFlow download from the others.
_MNIST = (
    "http://yann.lecun.com/exdb/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_CIFAR = ("https://www.cs.toronto.edu/~kriz/",)


def _idx(folders: tuple[str, ...], facts: tuple[tuple[int, str], ...]) -> tuple[Source, ...]:
    return tuple(
        Source(f"{file}.gz", folders, size, sha256) for file, (size, sha256) in zip(IDX_FILES, facts, strict=True)
    )


# CIFAR is downloaded in its binary form, which needs no unpickling.
SOURCES = {
    "mnist": _idx(
        _MNIST,
        (
            (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
    ),
    "fashion-mnist": _idx(
        _FASHION,
        (
            (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
    ),
    "cifar10": (
        Source(
            "cifar-10-binary.tar.gz",
            _CIFAR,
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    "cifar100": (
        Source(
            "cifar-100-binary.tar.gz",
            _CIFAR,
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
}

PAGES = {
    "mnist": "http://yann.lecun.com/exdb/mnist/",
    "fashion-mnist": "https://github.com/zalandoresearch/fashion-mnist",
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "cifar100": "https://www.cs.toronto.edu/~kriz/cifar.html",
}
