"""The style of the experiments' figures."""

import itertools

import pytest

from wnfused.experiments import plots


def test_initializations_have_colors_and_markers_of_their_own() -> None:
    for field in (plots.label, plots.color, plots.marker):
        assert len({field(init) for init in plots.INITS}) == len(plots.INITS)


def test_equal_curves_are_drawn_side_by_side() -> None:
    places = [plots.beside([0.01, 0.1, 1.0], i, 5) for i in range(5)]
    for some in zip(*places, strict=True):
        assert all(later > place for place, later in itertools.pairwise(some))
        assert some[-1] / some[0] < 2
    assert places[2] == pytest.approx([0.01, 0.1, 1.0])


def test_a_logarithmic_axis_is_labeled_at_what_was_measured() -> None:
    figure, (panel,) = plots.axes()
    panel.plot([10, 100, 10_000], [1, 2, 3])
    panel.set_xscale("log")
    plots.ticks_at(panel.xaxis, [10_000, 10, 100])
    figure.canvas.draw()
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["10", "100", "10,000"]
    assert not len(panel.get_xticks(minor=True))


def test_one_legend_below_names_every_curve_once() -> None:
    figure, panels = plots.axes(2, rows=2)
    for i, panel in enumerate(panels):
        panel.plot([1, 2], [1, 2], label="both")
        panel.plot([1, 2], [2, 1], label=f"panel {i}")
    plots.legend(figure)
    figure.canvas.draw()
    (made,) = figure.legends
    assert [text.get_text() for text in made.get_texts()] == ["both", *(f"panel {i}" for i in range(4))]
    box = made.get_window_extent()
    assert not any(panel.get_window_extent().overlaps(box) for panel in panels)
