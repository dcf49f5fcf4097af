"""Numbers as text, for terminal and report: a fixed number of digits per quantity, a dash for unknown values."""

UNKNOWN = "–"


def accuracy(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2%}"


def loss(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


def rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    value = 1e3 * seconds
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 100 else f"{value:.1f}"


def whole(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"
