"""The recommendations as a page: one file, no scripts, nothing fetched from elsewhere."""

from dataclasses import dataclass
from html import escape

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem; color: #222;
       background: #fcfbf8 }
h1 { font-size: 1.6rem } p, small { color: #666 }
ol { list-style: none; padding: 0; counter-reset: place }
li { counter-increment: place; display: grid; grid-template-columns: 2.5rem 1fr 9rem; align-items: center;
     padding: .5rem 0; border-bottom: 1px solid #e8e4da }
li::before { content: counter(place); color: #b4552d; font-weight: 600 }
meter { width: 100%; height: .7rem }
@media (prefers-color-scheme: dark) { body { background: #191816; color: #eee } li { border-color: #333 } }
"""


@dataclass(frozen=True)
class Suggestion:
    film_id: int
    title: str
    genres: str
    score: float  # 0 to 1: how sure the model is that it is a like


def page(found: list[Suggestion], who: str, metrics: dict[str, float]) -> str:
    rows = "\n".join(
        f"<li><span>{escape(one.title)}<br><small>{escape(one.genres.replace('|', ', '))}</small></span>"
        f'<meter min="0" max="1" value="{one.score:.4f}" title="{one.score:.0%}"></meter></li>'
        for one in found
    )
    measured = ", ".join(f"{escape(name)} {value:.3f}" for name, value in metrics.items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Films for {escape(who)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body><h1>Films for {escape(who)}</h1><p>Not rated yet, the likeliest first. The model: {measured}.</p>\n"
        f"<ol>\n{rows}\n</ol></body></html>\n"
    )
