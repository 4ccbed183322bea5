"""Results as one page that needs nothing else: the groups, the runs, and every plot that the results have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from stoker.client.report import pages
from stoker.client.report.spelling import count, duration, usd
from stoker.client.sweeps.results import Results, front, number, numeric, points, scaling
from stoker.errors import BadInput

_STYLE = Path(pages.__file__).with_name("receipt.css")
_MORE = """
main { max-width: 64rem; }
td, th { padding: .15rem .8rem .15rem 0; text-align: left; font-weight: 400; }
td.n, th.n { text-align: right; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
"""
_WIDE, _HIGH, _MARGIN = 720.0, 320.0, 60.0
_BLUE, _ORANGE = "#0072b2", "#d55e00"
_MOST_ROWS = 2000  # of runs, in the page


def page(results: Results) -> str:
    sections = [*_head(results), *_plots(results), _groups(results), _runs(results)]
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    style = _STYLE.read_text(encoding="utf-8") + _MORE
    head = f"<head>{meta}<title>{escape(results.name)}: results</title><style>{style}</style></head>"
    return f'<!doctype html>\n<html lang="en">{head}\n<body><main>\n{chr(10).join(sections)}\n</main></body></html>\n'


def _head(results: Results) -> Iterator[str]:
    states = ", ".join(f"{number} {state}" for state, number in results.states.items())
    yield f"<h1>{escape(results.name)} <small>{count(len(results.rows), 'run')}: {escape(states)}</small></h1>"
    best = results.best
    figure = results.figure(best) if best else None
    if best and figure is not None:
        values = ", ".join(f"{name}={text}" for name, text in best.values.items())
        yield f'<p class="sum">{figure:.4g} <small>best {escape(results.metric)}: {escape(best.name)}</small></p>'
        yield f'<p class="told">{escape(values)} · {usd(results.usd)} in all</p>'


def _plots(results: Results) -> Iterator[str]:
    kinds: tuple[tuple[str, Callable[[Results], str]], ...] = (
        ("Scatter", _scatter),
        ("Parallel coordinates", _parallel),
        ("Cost and result", _pareto),
        ("Scaling", _scaling),
    )
    for title, draw in kinds:
        try:
            drawn = draw(results)
        except BadInput:  # these results have nothing for it
            continue
        yield f"<h2>{title}</h2>{drawn}"


def _svg(inside: str, label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDE:.0f} {_HIGH:.0f}" role="img" aria-label="{escape(label)}">{inside}</svg>'


def _scatter(results: Results) -> str:
    found = points(results)
    name = numeric(results)
    dots = [(x, y, row.name, False) for x, y, row in found]
    return _dots(dots, name, results.metric)


def _pareto(results: Results) -> str:
    axis, found = front(results)
    return _dots([(x, y, row.name, best) for x, y, row, best in found], axis, results.metric)


def _scaling(results: Results) -> str:
    found = scaling(results)
    if len(found) < 2:
        raise BadInput("one number of nodes does not scale")
    rows = [
        f"<tr><td>{one.nodes}</td><td>{duration(one.seconds)}</td><td>{one.faster:.2f}×</td>"
        f"<td>{one.efficiency:.0%}</td><td>${one.usd:.4g}</td></tr>"
        for one in found
    ]
    head = "<tr><th>nodes</th><th>time</th><th>speed-up</th><th>efficiency</th><th>cost</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _dots(found: Sequence[tuple[float, float, str, bool]], x: str, y: str) -> str:
    xs = [one[0] for one in found]
    log = min(xs) > 0 and max(xs) > 1000 * min(xs)
    place_x = _placing([math.log10(one) if log else one for one in xs], _MARGIN, _WIDE - 10)
    place_y = _placing([one[1] for one in found], _HIGH - 30, 10)
    dots = []
    for one, two, name, best in found:
        at = f'cx="{place_x(math.log10(one) if log else one):.1f}" cy="{place_y(two):.1f}"'
        title = escape(f"{name}: {x} {one:.4g}, {y} {two:.4g}")
        fill = f'fill="{_ORANGE if best else _BLUE}" fill-opacity=".75"'
        dots.append(f'<circle {at} r="4" {fill}><title>{title}</title></circle>')
    ys = [one[1] for one in found]
    texts = [
        _text(_MARGIN, _HIGH - 12, f"{min(xs):.4g}"),
        _text(_WIDE - 10, _HIGH - 12, f"{max(xs):.4g}", "end"),
        _text((_WIDE + _MARGIN) / 2, _HIGH - 12, f"{x}{' (log)' if log else ''}", "middle"),
        _text(_MARGIN - 8, 20, f"{max(ys):.4g}", "end"),
        _text(_MARGIN - 8, _HIGH - 32, f"{min(ys):.4g}", "end"),
        _text(_MARGIN - 8, _HIGH / 2, y, "end"),
    ]
    return _svg("".join([*dots, *texts]), f"{y} by {x}")


def _parallel(results: Results) -> str:
    names = [*results.by]
    runs = [row for row in results.rows if results.figure(row) is not None][:_MOST_ROWS]
    if len(names) < 2 or not runs:
        raise BadInput("parallel coordinates need two parameters")
    step = (_WIDE - 2 * _MARGIN) / len(names)
    heights = {}
    for name in names:
        texts = sorted({row.values.get(name, "") for row in runs}, key=lambda one: (number(one), one))
        place = _placing([0.0, len(texts) - 1.0], _HIGH - 30, 30)
        heights[name] = {text: place(at) for at, text in enumerate(texts)}
    metric = _placing([figure for row in runs if (figure := results.figure(row)) is not None], _HIGH - 30, 30)
    lines = []
    for row in runs:
        places = [(_MARGIN + at * step, heights[name][row.values.get(name, "")]) for at, name in enumerate(names)]
        places.append((_MARGIN + len(names) * step, metric(results.figure(row) or 0.0)))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        best = row is results.best
        style = f'stroke="{_ORANGE if best else _BLUE}" stroke-opacity="{1 if best else 0.25}"'
        lines.append(f'<polyline points="{path}" fill="none" {style}><title>{escape(row.name)}</title></polyline>')
    titles = [_text(_MARGIN + at * step, 15, name, "middle") for at, name in enumerate([*names, results.metric])]
    return _svg("".join([*lines, *titles]), "parallel coordinates")


def _placing(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = min(values), max(values)
    return lambda value: start + (end - start) * ((value - low) / (high - low) if high > low else 0.5)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _groups(results: Results) -> str:
    head = _row([*results.by, results.metric, "spread", "runs", "time", "cost"], "th", len(results.by))
    rows = []
    for one in results.groups:
        mean = f"{one.mean:.4g}" if one.mean is not None else ""
        spread = f"± {one.spread:.2g}" if one.spread is not None else ""
        cells = [*one.values.values(), mean, spread, str(len(one.runs)), duration(one.seconds), usd(one.usd)]
        rows.append(_row(cells, "td", len(results.by)))
    return f"<h2>Means</h2><table>{head}{''.join(rows)}</table>"


def _runs(results: Results) -> str:
    shown = sorted(results.rows, key=lambda row: results.rank(results.figure(row)))[:_MOST_ROWS]
    rows = []
    for row in shown:
        figure = results.figure(row)
        values = ", ".join(f"{name}={text}" for name, text in row.values.items())
        told = f"{figure:.4g}" if figure is not None else ""
        rows.append(_row([row.name, str(row.state), values, told, duration(row.seconds), usd(row.usd)], "td", 3))
    more = f"<p>{len(results.rows) - len(shown):,} more are not shown</p>" if len(results.rows) > len(shown) else ""
    head = _row(["run", "state", "values", results.metric, "time", "cost"], "th", 3)
    return f"<h2>Runs</h2><table>{head}{''.join(rows)}</table>{more}"


def _row(cells: Sequence[str], tag: str, texts: int) -> str:
    """The first ones are texts, the others figures."""
    made = [f"<{tag}{'' if at < texts else ' class=n'}>{escape(cell)}</{tag}>" for at, cell in enumerate(cells)]
    return f"<tr>{''.join(made)}</tr>"
