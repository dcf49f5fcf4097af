"""Curves of the report as inline SVG: one small panel per quantity, each line labelled at its end.

matplotlib draws them, like all plots of wnfused. Colours become variables of the page's style sheet, and texts take its
font, so that one drawing works in light mode, dark mode and print.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from markupsafe import Markup

from wnfused import plotting

WIDTH, HEIGHT = 460, 280
TOP, BOTTOM, LEFT, RIGHT = 14, 40, 50, 14
LABEL_ROOM = 150  # the maximum width of a line's label
LETTER = 7.7  # approximate width of a letter; fonts differ
DOTS = 120  # the maximum number of points in a panel that are drawn as dots
HUGE = 1e100  # beyond it the arithmetic of axes overflows
COLOURS = len(plotting.COLOURS)


@dataclass(frozen=True)
class Curve:
    label: str
    points: list[tuple[float, float]]
    colour: int  # the same colours again, dashed, from COLOURS on
    diverged: float | None = None  # x at which it diverged, marked with a cross


@dataclass(frozen=True)
class Panel:
    title: str
    svg: Markup | None  # None if nothing was measured


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
) -> Panel:
    """One panel. ``show`` formats a value; ``log`` allows a logarithmic axis if the values span a factor of 20;
    ``bounds`` limit the axis. If the quantity ``rises`` as a run diverges, its curve leaves at the top, even without a
    single point.
    """
    curves = [replace(curve, points=[(x, min(max(y, -HUGE), HUGE)) for x, y in curve.points]) for curve in curves]
    drawn = [curve for curve in curves if curve.points or (rises and curve.diverged is not None)]
    if not any(curve.points for curve in drawn):
        return Panel(title, None)
    figure = plotting.figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
    figure.patch.set_visible(False)
    room = max([RIGHT, *(14 + LETTER * len(_short(curve.label)) for curve in drawn if labelled)])
    size = ((WIDTH - LEFT - room) / WIDTH, (HEIGHT - TOP - BOTTOM) / HEIGHT)
    axes = figure.add_axes((LEFT / WIDTH, BOTTOM / HEIGHT, *size))
    _set_axes(axes, drawn, x_label, show, log, bounds, from_zero or log, whole_x)
    dots = sum(len(curve.points) for curve in drawn) <= DOTS
    ends = [_draw(axes, curve, rises, f"dots-{i}" if dots else None) for i, curve in enumerate(drawn)]
    if labelled:
        _draw_labels(axes, ends, drawn)
    states = (f"{c.label} {f'ends at {show(c.points[-1][1])}' if c.diverged is None else 'diverges'}" for c in drawn)
    description = f"{title}: {'; '.join(states)}"
    svg = _inline(figure, salt=description)
    for i, curve in enumerate(drawn if dots else ()):
        label = f"{curve.label}, {x_label}".removeprefix(", ")
        svg = _add_tooltips(svg, f"dots-{i}", [f"{label} {x:g}: {show(y)}" for x, y in curve.points])
    start = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(description)}">'
    return Panel(title, Markup(start + svg + "</svg>"))  # matplotlib has escaped the texts


def _set_axes(
    axes: Any,
    curves: Sequence[Curve],
    x_label: str,
    show: Callable[[float], str],
    log: bool,
    bounds: tuple[float, float] | None,
    from_zero: bool,
    whole_x: bool,
) -> None:
    from matplotlib.ticker import MaxNLocator

    plotting.plain_axes(axes)
    axes.patch.set_visible(False)
    axes.set_xlabel(x_label, fontsize=12)
    axes.tick_params(labelsize=12)
    ends = [at for curve in curves for at, _ in curve.points]
    ends += [curve.diverged for curve in curves if curve.diverged is not None]
    left, right = min(ends) if whole_x else 0.0, max(ends)
    axes.set_xlim(*((left, right) if left < right else (left - 1, right + 1)))
    if whole_x:
        plotting.integer_ticks(axes.xaxis, 6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")

    low, high = _y_range(curves)
    if log and low > 0 and high / low > 20:
        plotting.log_scale(axes, low, high)
    else:
        low = 0.0 if from_zero and low >= 0 else low
        ticks = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10])
        axes.yaxis.set_major_locator(ticks)
        if low == high:
            low, high = low - (abs(low) / 2 or 0.5), high + (abs(low) / 2 or 0.5)
        marks = ticks.tick_values(low, high)
        low, high = min(low, marks[0]), max(high, marks[-1])
        if bounds and max(low, bounds[0]) < min(high, bounds[1]):
            low, high = max(low, bounds[0]), min(high, bounds[1])
        axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(lambda value, _: show(value))


def _y_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """The range of the curves that stayed finite; a diverged one may leave it, or the others could not be seen."""
    calm = [y for curve in curves if curve.diverged is None for _, y in curve.points]
    wild = [y for curve in curves if curve.diverged is not None for _, y in curve.points]
    if calm:
        ceiling = 2 * max(calm) if max(calm) > 0 else max(calm)
        wild = [min(y, ceiling) for y in wild]
    return min(calm + wild), max(calm + wild)


def _draw(axes: Any, curve: Curve, rises: bool, dots: str | None) -> tuple[float, float]:
    """Draw a curve inside the axes, with ``dots`` as the id of its dots; returns its end, at the top if it left."""
    low, high = axes.get_ylim()
    points = [(x, min(max(y, low), high)) for x, y in curve.points]
    line = {"color": plotting.COLOURS[curve.colour % COLOURS], "linewidth": 2, "clip_on": False}
    dashes: dict[str, Any] = {"linestyle": (0, (2, 2))}
    if points:
        marker: dict[str, Any] = {"marker": "o", "markersize": 5, "markeredgewidth": 0, "gid": dots} if dots else {}
        axes.plot(*zip(*points, strict=True), **line, **marker, **(dashes if curve.colour >= COLOURS else {}))
    if curve.diverged is None:
        return points[-1]
    end = (curve.diverged, high) if rises else points[-1]
    if rises and points:
        axes.plot(*zip(points[-1], end, strict=True), **line, **dashes)
    axes.plot(*end, **line, marker="x", markersize=10, markeredgewidth=2)
    return end


def _draw_labels(axes: Any, ends: Sequence[tuple[float, float]], curves: Sequence[Curve]) -> None:
    """Labels right of the axes, moved apart, each with a dotted line from the end of its curve."""
    right, ends = axes.bbox.x1, [axes.transData.transform(end) for end in ends]
    places = spread([y for _, y in ends], 14, axes.bbox.y0, axes.bbox.y1)
    for curve, (x, y), at in zip(curves, ends, places, strict=True):
        colour = plotting.COLOURS[curve.colour % COLOURS]
        pixels = {"transform": None, "clip_on": False}
        if right - x > 12 or abs(at - y) > 6:
            axes.plot([x + 7, right + 5], [y, at], color=colour, linewidth=1, linestyle=(0, (1, 4)), **pixels)
        axes.text(
            right + 9, at - 4, _short(curve.label), color=colour, weight="bold", size=12, parse_math=False, **pixels
        )


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places, moved at least ``gap`` apart and, if they fit, between ``low`` and ``high``."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [min(max(places[i], low), high) for i in order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    if moved and moved[-1] > high:
        moved[-1] = high
        for i in range(len(moved) - 2, -1, -1):
            moved[i] = min(moved[i], moved[i + 1] - gap)
    result = [0.0] * len(places)
    for position, i in enumerate(order):
        result[i] = moved[position]
    return result


def _short(text: str) -> str:
    text, fits = " ".join(text.split()), int((LABEL_ROOM - 14) / LETTER)
    return text if len(text) <= fits else text[: fits - 1] + "…"


def _inline(figure: Any, salt: str) -> str:
    """The content of the figure's SVG for an HTML page: no header, no date, colours and font of the page.

    Ids depend on ``salt``: they differ between panels, but not from run to run.
    """
    import matplotlib

    buffer = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": salt}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about letters that matplotlib's font lacks; the browser's has them
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    body = svg[svg.index("</defs>") + len("</defs>") : svg.rindex("</svg>")]
    body = re.sub(r"<[^>]*>", lambda tag: _clean(tag[0]), body)
    body = re.sub(r">\s+<", "><", body).strip()
    return re.sub(r"<g/>|<defs><clipPath.*?</clipPath></defs>", "", body)


def _add_tooltips(svg: str, group: str, texts: Sequence[str]) -> str:
    """Give the dots in the group with that id a tooltip each."""
    before, found, after = svg.partition(f'<g id="{group}">')
    if not found:
        return svg
    dots, end, rest = after.partition("</g></g>")
    titles = iter(texts)
    dots = re.sub(r"(<use [^>]*)/>", lambda use: f"{use[1]}><title>{escape(next(titles))}</title></use>", dots)
    return f"{before}<g>{dots}{end}{rest}"


UNUSED = re.compile(
    r""" id="(figure|axes|patch|text|line2d|matplotlib\.axis|xtick|ytick)_\d+"| transform="rotate\(-?0 [^"]*"|"""
    r"""font-family: [^;"]*;? ?|(; )?stroke-linecap: square| clip-path="[^"]*\""""
)
VARIABLES = {colour: f"var(--c{i})" for i, colour in enumerate(plotting.COLOURS)}
VARIABLES |= {plotting.QUIET: "var(--quiet)", plotting.RULE: "var(--rule)"}


def _clean(tag: str) -> str:
    """A tag without matplotlib's ids and fonts, and with the colours of the style sheet."""
    tag = UNUSED.sub("", " ".join(tag.split()))
    tag = re.sub(r"font: bold ([\d.]+px) [^;\"]*", r"font-weight: 600; font-size: \1", tag)
    for colour, variable in VARIABLES.items():
        tag = tag.replace(colour, variable)
    return tag
