"""Charts of a run: values worked out by hand."""

from sortal.runs.curves import Span, k_curve, log_ticks, risk_coverage, round_axis
from sortal.runs.facts import CoveragePoint, KChoice, RiskCoverage, TriedK


def test_the_k_curve_shows_every_k_the_interval_and_the_choice() -> None:
    curve = tuple(TriedK(k=k, score=0.5, each=(0.4, 0.6)) for k in (100, 10, 1000))
    chart = k_curve(KChoice(k=100, estimated=True, known=2, interval=(90, 120), curve=curve))
    assert chart is not None
    assert [point.x for point in chart.points] == [10, 100, 1000], "in order"
    assert (chart.x.low, chart.x.high, chart.x.log) == (10, 1000, True)
    assert [text for _, text in chart.x.ticks] == ["10", "20", "50", "100", "200", "500", "1,000"]
    assert chart.spans == [Span("Interval", 90, 120, "likely 90 to 120")]
    assert [each.x for each in chart.uprights] == [100]
    marked = k_curve(KChoice(k=100, estimated=True, known=2, curve=curve), true=2000)
    assert marked is not None
    assert [(each.name, each.x) for each in marked.uprights] == [("Chosen", 100), ("True", 2000)]
    assert (marked.spans, marked.x.high) == ([], 2000)
    assert k_curve(KChoice(k=5, estimated=False, known=2)) is None
    single = k_curve(KChoice(k=7, estimated=True, known=2, curve=(TriedK(k=7, score=0.5, each=()),)))
    assert single is not None
    assert single.x.ticks == [(7, "7")], "a single point can be drawn"
    assert single.spreads[0].values == [(7, (0.5,))]


def test_a_point_on_the_coverage_curve_separates_sure_from_unsure_images() -> None:
    rows = tuple(CoveragePoint(*row) for row in ((1 / 3, 1.0, 0.9), (2 / 3, 0.5, 0.6), (1.0, 2 / 3, 0.4)))
    chart = risk_coverage(RiskCoverage(all=rows, old=rows[:2], new=()), 0.5)
    assert chart is not None
    assert [(line.name, line.text) for line in chart.lines] == [("All", "66.7%"), ("Known classes", "50.0%")]
    assert [(point.x, point.y, point.style) for point in chart.points] == [(2 / 3, 0.5, "all")]
    assert (chart.y.low, [text for _, text in chart.y.ticks]) == (0.4, ["40%", "60%", "80%", "100%"])
    assert risk_coverage(RiskCoverage(all=(), old=(), new=())) is None


def test_axes_have_round_ticks() -> None:
    assert [text for _, text in round_axis("", 0.47, 0.74).ticks] == ["0.4", "0.5", "0.6", "0.7", "0.8"]
    assert [text for _, text in round_axis("", 0, 3, finest=1).ticks] == ["0", "1", "2", "3"]
    assert [text for _, text in round_axis("", 5, 5).ticks] == ["4", "6"]
    assert log_ticks(52, 58) == [52, 58]
    assert log_ticks(10, 60) == [10, 20, 30, 40, 50]
