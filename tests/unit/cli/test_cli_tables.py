"""Tables line up, whatever is in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.view.terminal import one_line
from stoker.cli.view.words import Column, TableCell, cells_wide, clipped, pairs, table

COLUMNS = (Column("RUN", least=6), Column("STATE"), Column("TIME", right=True), Column("NOTE", least=4))


def plain(text: str, style: str) -> str:
    return text


def test_columns_line_up() -> None:
    rows: list[list[TableCell | str]] = [
        ["ants-1", TableCell("running", "busy"), "3.0 s", "x"],
        ["ants-and-bees-12", "failed", "10 s", "y"],
    ]
    assert table(COLUMNS, rows, 100, plain) == [
        "RUN               STATE     TIME  NOTE",
        "ants-1            running  3.0 s  x",
        "ants-and-bees-12  failed    10 s  y",
    ]


def test_an_empty_column_is_left_out() -> None:
    lines = table(COLUMNS, [["ants-1", "queued", "", ""]], 100, plain)
    assert lines == ["RUN     STATE", "ants-1  queued"]


def test_the_widest_column_gives_way_first() -> None:
    lines = table(COLUMNS, [["ants-1", "running", "3.0 s", "a very long note that does not fit here"]], 34, plain)
    assert lines[1] == "ants-1  running  3.0 s  a very lo…"


def test_colours_take_no_space() -> None:
    def loud(text: str, style: str) -> str:
        return f"<{style}>{text}</>"

    line = table(COLUMNS, [["a", TableCell("failed", "error"), "1 s", "n"]], 100, loud)[1]
    assert line == "a    <error>failed</>   1 s  n"


def test_wide_characters_count_twice_and_marks_not_at_all() -> None:
    assert [cells_wide(text) for text in ("ab", "漢字", "e\u0301", "\u200b")] == [2, 4, 1, 0]
    assert clipped("漢字漢字", 5) == "漢字…"


def test_text_from_elsewhere_cannot_break_a_table() -> None:
    assert one_line("a\nb\tc\x1b[2Jd") == "a b cd"


@given(st.lists(st.lists(st.text(max_size=30), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(40, 120))
def test_no_line_is_wider_than_the_terminal_where_columns_can_give(rows: list[list[str]], width: int) -> None:
    columns = [Column("A", least=2), Column("B", least=2), Column("C", right=True, least=2), Column("D", least=2)]
    for line in table(columns, rows, width, plain):
        assert cells_wide(line) <= width
        assert "\n" not in line


def test_pairs_leave_out_what_is_empty_and_line_up_further_lines() -> None:
    rows = [("command", "python train.py"), ("git", ""), ("data", "a: /x\nb: /y")]
    assert pairs(rows, plain) == ["  command  python train.py", "  data     a: /x", "           b: /y"]
