"""Charts of a run drawn for print."""

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from sortal.research.figures import style
from sortal.runs import curves
from sortal.runs.curves import Chart

LOOKS = {  # colour and dashes of each style
    "own": (style.DARK, "-"),
    "all": (style.DARK, "-"),
    "old": (style.BLUE, "--"),
    "new": (style.ORANGE, "-."),
    "chosen": (style.BLUE, "-"),
    "true": (style.ORANGE, "--"),
}


def plot(chart: Chart, legend_title: str = "") -> Figure:
    """Draw a chart, with a legend below it."""
    figure = style.figure(style.TEXT_WIDTH * 0.75, 3.4, layout="constrained")
    axes = figure.add_subplot()
    for span in chart.spans:
        axes.axvspan(span.low, span.high, color=style.BLUE, alpha=0.12, lw=0, label=f"{span.name}: {span.text}")
    for spread in chart.spreads:
        x, y = zip(*((at, value) for at, each in spread.values for value in each), strict=True)
        axes.scatter(x, y, 9, style.PALE, linewidths=0, zorder=2, label=spread.name)
    for line in chart.lines:
        colour, dashes = LOOKS[line.style]
        label = f"{line.name}: {line.text}" if line.text else line.name
        axes.plot(*zip(*line.points, strict=True), dashes, c=colour, label=label)
    for point in chart.points:
        axes.plot(point.x, point.y, "o", c=LOOKS[point.style][0], ms=point.size, label="_")
    for upright in chart.uprights:
        colour, dashes = LOOKS[upright.style]
        axes.axvline(upright.x, c=colour, ls=dashes, lw=1.4, label=f"{upright.name}: {upright.text}")
    axes.set(title=chart.title, xlabel=chart.x.title, ylabel=chart.y.title)
    axes.set(xscale="log" if chart.x.log else "linear", xlim=_ends(chart.x), ylim=_ends(chart.y))
    _set_ticks(axes.xaxis, chart.x)
    _set_ticks(axes.yaxis, chart.y)
    figure.legend(loc="outside lower center", ncols=3, title=legend_title or None)
    return figure


def _set_ticks(axis: Axis, own: curves.Axis) -> None:
    axis.set_major_locator(FixedLocator([value for value, _ in own.ticks]))
    axis.set_major_formatter(FixedFormatter([text for _, text in own.ticks]))
    axis.set_minor_locator(NullLocator())


def _ends(axis: curves.Axis) -> tuple[float, float]:
    """Return where an axis ends: with room for points on both sides if it is logarithmic, else for the top line."""
    if axis.log:
        room = (axis.high / axis.low) ** 0.04 if axis.high > axis.low else 1.1
        return axis.low / room, axis.high * room
    return axis.low, axis.high + 0.01 * (axis.high - axis.low)
