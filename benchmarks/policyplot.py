"""A picture of the policies: what each costs, by how much more time a training has than it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.policies import DEADLINE, FALLBACK, GREEDY, ORACLE, SPOT, SURE, Case, Score

if TYPE_CHECKING:
    from collections.abc import Mapping

COLOURS = {
    ORACLE: "#7f7f7f",
    DEADLINE: "#d95f02",
    GREEDY: "#1b9e77",
    FALLBACK: "#7570b3",
    SPOT: "#66a61e",
    SURE: "#444444",
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 860, 420, 60, 50, 60, 230
TEXT = "font-family='sans-serif' font-size='13' fill='#333'"


def draw(path: Path, title: str, cases: Sequence[Case], scores: Sequence[Mapping[str, Score]]) -> None:
    """One line for each policy: its mean cost as a share of on-demand's. A hollow point missed some deadlines."""
    groups = _groups(cases)
    lines = [
        _frame(f"Cost of a training with a deadline, {title} traces ({len(cases)} trainings)"),
        _axes(list(groups)),
    ]
    for order, name in enumerate(COLOURS):
        points = []
        for place, members in enumerate(groups.values()):
            share = fmean(scores[one][name].usd for one in members) / fmean(scores[one][SURE].usd for one in members)
            met = all(scores[one][name].meets(cases[one]) for one in members)
            points.append((_x(place, len(groups)), _y(share), met))
        lines += [_line(points, COLOURS[name]), _key(order, name)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "</svg>", ""]), encoding="utf-8")


def _groups(cases: Sequence[Case]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for number, case in enumerate(cases):
        groups.setdefault(f"{round(100 * (case.deadline_s / case.work_s - 1) / 4) * 4:d} %", []).append(number)
    return dict(sorted(groups.items(), key=lambda item: int(item[0].split()[0])))


def _frame(title: str) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}'>"
        f"<rect width='100%' height='100%' fill='white'/>"
        f"<text x='{LEFT}' y='28' {TEXT} font-weight='bold'>{title}</text>"
    )


def _axes(labels: Sequence[str]) -> str:
    parts = []
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>")
        parts.append(f"<text x='{LEFT - 8}' y='{y + 4:.1f}' {TEXT} text-anchor='end'>{tenth * 10} %</text>")
    for place, label in enumerate(labels):
        x = _x(place, len(labels))
        parts.append(f"<text x='{x:.1f}' y='{HEIGHT - BOTTOM + 20}' {TEXT} text-anchor='middle'>{label}</text>")
    under = "time beyond the work; mean cost as a share of on-demand's; a hollow point missed some deadlines"
    parts.append(f"<text x='{LEFT}' y='{HEIGHT - 14}' {TEXT}>{under}</text>")
    return "".join(parts)


def _line(points: Sequence[tuple[float, float, bool]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = "".join(
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' stroke='{colour}' stroke-width='2' "
        f"fill='{colour if met else 'white'}'/>"
        for x, y, met in points
    )
    return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>{dots}"


def _key(order: int, name: str) -> str:
    x, y = WIDTH - RIGHT + 24, TOP + 24 * order
    circle = f"<circle cx='{x}' cy='{y}' r='5' fill='{COLOURS[name]}'/>"
    return f"{circle}<text x='{x + 14}' y='{y + 4}' {TEXT}>{name}</text>"


def _x(place: int, count: int) -> float:
    return LEFT + 20 + place * (WIDTH - LEFT - RIGHT - 40) / max(count - 1, 1)


def _y(share: float) -> float:
    return TOP + (1 - min(share, 1.1) / 1.1) * (HEIGHT - TOP - BOTTOM)
