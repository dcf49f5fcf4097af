"""Curves as inline SVG: one small panel for each quantity, the lines labelled where they end.

Colours and type come from the page's style sheet (classes ``c0`` to ``c6``): one drawing serves light, dark and print.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from wnfused.report.ticks import Axis, linear, logarithmic, spread, whole

WIDTH, HEIGHT = 460, 280
TOP, BOTTOM, LEFT, RIGHT = 14, 40, 50, 14
LABEL_ROOM = 150  # the most a line's label may take
LETTER = 7.7  # width of a letter of the labels, about; fonts differ
COLOURS = 7  # then the dashes change
MARKED = 120  # points in a panel up to which each is a dot that tells its value


@dataclass(frozen=True)
class Curve:
    label: str
    points: list[tuple[float, float]]
    colour: int
    diverged: float | None = None  # where it went beyond all bounds, which a cross marks


def panel(
    title: str,
    curves: Sequence[Curve],
    *,
    x_label: str = "epoch",
    show: Callable[[float], str],
    log: bool = False,
    bounds: tuple[float, float] | None = None,
    from_zero: bool = False,
    rises: bool = False,
    labelled: bool = True,
    whole_x: bool = True,
) -> str:
    """One figure. ``show`` writes a value, on the axis and in the dots' tooltips; ``log`` asks for a logarithmic axis
    where the values call for it; ``bounds`` are values that no curve passes, so the axis need not either. Where the
    quantity ``rises`` as a run diverges, its curve leaves through the top, even one that has no point."""
    drawn = [curve for curve in curves if curve.points or (rises and curve.diverged is not None)]
    if not any(curve.points for curve in drawn):
        drawn = []
    if not drawn:
        return _figure(title, f'<p class="nothing">Nothing was measured: no {escape(title.lower())} in these runs.</p>')
    room = max([RIGHT, *(14 + LETTER * len(_short(curve.label)) for curve in drawn if labelled)])
    frame = _Frame(LEFT, WIDTH - room, TOP, HEIGHT - BOTTOM)
    x, y = _x_axis(drawn, whole_x), _y_axis(drawn, log, from_zero or log, bounds)
    parts = [*_grid(frame, x, y, show, x_label)]
    marked = sum(len(curve.points) for curve in drawn) <= MARKED
    for curve in drawn:
        parts += _line(frame, x, y, curve) + (_dots(frame, x, y, curve, show, x_label) if marked else [])
        parts += _cross(frame, x, y, curve, rises)
    if labelled:
        parts += _labels(frame, [_end(frame, x, y, curve, rises) for curve in drawn], drawn)
    ends = (f"{c.label} {f'ends at {show(c.points[-1][1])}' if c.diverged is None else 'diverges'}" for c in drawn)
    described = escape(f"{title}: {'; '.join(ends)}")
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{described}">{"".join(parts)}</svg>'
    return _figure(title, svg)


@dataclass(frozen=True)
class _Frame:
    left: float
    right: float
    top: float
    bottom: float

    def x(self, axis: Axis, value: float) -> float:
        return self.left + axis.place(value) * (self.right - self.left)

    def y(self, axis: Axis, value: float) -> float:
        return self.bottom - axis.place(value) * (self.bottom - self.top)


def _figure(title: str, content: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{content}</figure>"


def _x_axis(curves: Sequence[Curve], whole_x: bool) -> Axis:
    values = [x for curve in curves for x, _ in curve.points] + [c.diverged for c in curves if c.diverged is not None]
    if whole_x:
        return whole(int(min(values)), int(max(values)))
    axis = linear(0.0, max(values) or 1.0)
    return Axis(0.0, max(values) or 1.0, tuple(tick for tick in axis.ticks if tick <= max(values)) or (0.0,))


def _y_axis(curves: Sequence[Curve], log: bool, from_zero: bool, bounds: tuple[float, float] | None) -> Axis:
    """The range of the curves that stayed finite; one that diverged may leave it, or nothing else could be seen."""
    calm = [y for curve in curves if curve.diverged is None for _, y in curve.points]
    wild = [y for curve in curves if curve.diverged is not None for _, y in curve.points]
    if calm:
        ceiling = 2 * max(calm) if max(calm) > 0 else max(calm)
        wild = [min(y, ceiling) for y in wild]
    low, high = min(calm + wild), max(calm + wild)
    if log and low > 0 and high / low > 20:
        return logarithmic(low, high)
    axis = linear(0.0 if from_zero and low >= 0 else low, high)
    if bounds is None:
        return axis
    kept = tuple(tick for tick in axis.ticks if bounds[0] <= tick <= bounds[1])
    return Axis(max(axis.low, bounds[0]), min(axis.high, bounds[1]), kept) if len(kept) > 1 else axis


def _grid(frame: _Frame, x: Axis, y: Axis, show: Callable[[float], str], x_label: str) -> list[str]:
    parts = []
    for tick in y.ticks:
        at = frame.y(y, tick)
        parts.append(f'<path class="grid" d="M{frame.left:.1f} {at:.1f}H{frame.right:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{frame.left - 8:.1f}" y="{at + 4:.1f}" text-anchor="end">{show(tick)}</text>'
        )
    parts.append(f'<path class="axis" d="M{frame.left:.1f} {frame.bottom:.1f}H{frame.right:.1f}"/>')
    for tick in x.ticks:
        at = frame.x(x, tick)
        parts.append(f'<path class="axis" d="M{at:.1f} {frame.bottom:.1f}v4"/>')
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{frame.bottom + 17:.1f}" text-anchor="middle">{tick:g}</text>'
        )
    middle = (frame.left + frame.right) / 2
    parts.append(f'<text class="tick" x="{middle:.1f}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_label)}</text>')
    return parts


def _line(frame: _Frame, x: Axis, y: Axis, curve: Curve) -> list[str]:
    if len(curve.points) < 2:
        return []
    path = "L".join(f"{frame.x(x, at):.1f} {frame.y(y, value):.1f}" for at, value in curve.points)
    return [f'<path class="line {kind(curve.colour)}" d="M{path}"/>']


def _dots(frame: _Frame, x: Axis, y: Axis, curve: Curve, show: Callable[[float], str], x_label: str) -> list[str]:
    parts = []
    for at, value in curve.points:
        place = f'cx="{frame.x(x, at):.1f}" cy="{frame.y(y, value):.1f}"'
        said = escape(f"{curve.label}, {x_label} {at:g}: {show(value)}".removeprefix(", "))
        parts.append(f'<circle class="dot c{curve.colour % COLOURS}" {place} r="2.6"><title>{said}</title></circle>')
    return parts


def kind(colour: int) -> str:
    """The classes of a line: seven colours, and the same seven dashed."""
    return f"c{colour % COLOURS}" + (" dashed" if colour >= COLOURS else "")


def _cross(frame: _Frame, x: Axis, y: Axis, curve: Curve, rises: bool) -> list[str]:
    if curve.diverged is None:
        return []
    a, b = _end(frame, x, y, curve, rises)
    colour = f"c{curve.colour % COLOURS}"
    parts = [f'<path class="line {colour}" d="M{a - 5:.1f} {b - 5:.1f}l10 10m0 -10l-10 10"/>']
    if rises and curve.points:
        last = frame.x(x, curve.points[-1][0]), frame.y(y, curve.points[-1][1])
        parts.append(f'<path class="line {colour} dashed" d="M{last[0]:.1f} {last[1]:.1f}L{a:.1f} {b:.1f}"/>')
    return parts


def _end(frame: _Frame, x: Axis, y: Axis, curve: Curve, rises: bool) -> tuple[float, float]:
    """Where a curve ends: at its last point, or at the top where it left."""
    if rises and curve.diverged is not None:
        return frame.x(x, curve.diverged), frame.top
    return frame.x(x, curve.points[-1][0]), frame.y(y, curve.points[-1][1])


def _labels(frame: _Frame, ends: Sequence[tuple[float, float]], curves: Sequence[Curve]) -> list[str]:
    places = spread([end for _, end in ends], 14, frame.top, frame.bottom)
    parts = []
    for curve, (a, b), at in zip(curves, ends, places, strict=True):
        colour = f"c{curve.colour % COLOURS}"
        if frame.right - a > 12 or abs(at - b) > 6:  # lead the eye from the line's end to its name
            parts.append(f'<path class="leader {colour}" d="M{a + 7:.1f} {b:.1f}L{frame.right + 5:.1f} {at:.1f}"/>')
        label = escape(_short(curve.label))
        parts.append(f'<text class="label {colour}" x="{frame.right + 9:.1f}" y="{at + 4:.1f}">{label}</text>')
    return parts


def _short(text: str) -> str:
    fits = int((LABEL_ROOM - 14) / LETTER)
    return text if len(text) <= fits else text[: fits - 1] + "…"
