"""The limit of a layer, and the page that shows it."""

import pytest

from wnfused.benchmarks import limits
from wnfused.benchmarks.cases import layers


@pytest.mark.parametrize(
    ("name", "products", "elements"),
    [
        ("Linear 512→512, batch 8", 8 * 512 * 512, (8 * 512, 512 * 512, 8 * 512)),
        (
            "Conv2d 128→512 5×1 stride (3,1) @101×5, batch 8",
            8 * 34 * 5 * 512 * 128 * 5,
            (8 * 128 * 101 * 5, 512 * 128 * 5, 8 * 512 * 34 * 5),
        ),
        (
            "ConvTranspose1d 512→256 16 stride 8 @32, batch 1",
            32 * 512 * 256 * 16,
            (512 * 32, 512 * 256 * 16, 256 * 256),
        ),
        (
            "Conv1d 768→768 128 groups 16 @149, batch 2",
            2 * 150 * 768 * 48 * 128,
            (2 * 768 * 149, 768 * 48 * 128, 2 * 768 * 150),
        ),
    ],
)
def test_products_and_elements(name: str, products: int, elements: tuple[int, int, int]) -> None:
    (case,) = (case for case in layers() if case.name == name)
    work = limits.work_of(case)
    x, v, y = elements
    assert work == (products, x, v, y)
    assert work.elements("inference") == x + v + y and work.elements("step") == 3 * x + 3 * v + 2 * y


def test_the_page_shows_the_committed_results() -> None:
    """`python -m benchmarks.limits page` leaves it as it is."""
    text = (limits.ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert limits.in_page(text) == text
    assert limits.in_page(text.replace("| step |", "| changed |", 1)) == text
