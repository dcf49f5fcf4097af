"""Numbers as text."""

import pytest

from wnfused import formatting


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.64, "59.6 s"), (99.94, "99.9 s"), (99.96, "1 min 40 s"), (3599.6, "1 h 00 min"),
     (3725.0, "1 h 02 min"), (None, "–")],
)  # fmt: skip
def test_duration(seconds: float | None, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_other_quantities() -> None:
    assert formatting.accuracy(0.74) == "74.00%"
    assert [formatting.loss(value) for value in (0.25, 1234.5)] == ["0.2500", "1.23e+03"]
    assert [formatting.milliseconds(value) for value in (0.00123, 0.0123, 0.123)] == ["1.23 ms", "12.3 ms", "123 ms"]
    assert [formatting.count(value) for value in (12.34, 12345.0)] == ["12.3", "12\u202f345"]
    assert formatting.whole(3.0) == "3" and formatting.rate(0.1) == "0.1"
    for show in (formatting.accuracy, formatting.loss, formatting.milliseconds, formatting.count, formatting.rate):
        assert show(None) == formatting.UNKNOWN
