from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.process.notebook_html import table, text, title


class Page(HTMLParser):
    """The elements and the text of some HTML, as a browser reads it."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert {name for name, _ in attrs} <= {"style"}

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("value", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&lt;b&gt;"])
def test_a_value_is_shown_as_it_is_and_never_becomes_an_element(value: str) -> None:
    for source, tags in (
        (title(value, value), {"div", "b"}),
        (text(value), {"pre"}),
        (table([(value, value)], [value, value]), {"table", "thead", "tbody", "tr", "th", "td"}),
    ):
        page = Page(source)
        assert set(page.tags) == tags
        assert value in page.words


@given(st.text())
def test_no_text_leaves_its_cell(value: str) -> None:
    assert Page(table([("name", value)])).tags == ["table", "tbody", "tr", "th", "td"]


def test_a_value_has_no_control_sequences() -> None:
    assert Page(text("\x1b[31mred\x1b[0m\x07")).words == ["red"]


def test_numbers_have_four_digits_and_stand_to_the_right_below_their_header() -> None:
    source = table([("loss", 0.123456), ("step", 123456)], ["name", "value"])
    assert [word for word in Page(source).words if word != "name"] == ["value", "loss", "0.1235", "step", "123456"]
    assert source.count("text-align:right") == 3


def test_a_table_without_rows_is_nothing() -> None:
    assert table([], ["name"]) == ""
