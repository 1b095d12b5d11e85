"""The figure of differences."""

import math
from xml.etree import ElementTree

import pytest

from esper.evaluation.forest import Row, forest

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*rows: Row, margin: float | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(forest(rows, "accuracy <b> [pp]", margin))


def test_marks_stand_where_the_axis_says() -> None:
    picture = drawn(Row("a - b", 2.0, 1.0, 3.0), Row("a - c", -1.0, -4.0, 2.0), margin=1.0)
    texts = {text.text: float(text.get("x", 0)) for text in picture.iter(f"{SVG}text")}
    marks = [float(mark.get("cx", 0)) for mark in picture.iter(f"{SVG}circle")]
    assert marks == pytest.approx([texts["2"], texts["2"] + 3 / 2 * (texts["0"] - texts["2"])], abs=0.2)
    zero, first, _, second, _ = picture.iter(f"{SVG}line")
    assert float(zero.get("x1", 0)) == texts["0"]
    assert float(first.get("x2", 0)) - float(first.get("x1", 0)) == pytest.approx(texts["2"] - texts["0"], abs=0.2)
    assert float(second.get("x1", 0)) == texts["-4"]
    band, _ = picture.iter(f"{SVG}rect")
    for text in picture.iter(f"{SVG}text"):  # no text lies over a band
        over = [float(one.get("y", 0)) for one in picture.iter(f"{SVG}rect")]
        assert not any(y < float(text.get("y", 0)) < y + float(band.get("height", 0)) for y in over), text.text
    assert float(band.get("width", 0)) == pytest.approx(texts["2"] - texts["0"], abs=0.2)
    assert {"grey: within the margin of 1; dashed: 0", "+2.00 (1.00 to 3.00)", "accuracy <b> [pp]"} <= {*texts}


def test_a_difference_without_an_interval_is_a_dot() -> None:
    picture = drawn(Row("a - b", 0.2, -math.inf, math.inf, "unfinished"), margin=1.0)
    assert {line.get("stroke") for line in picture.iter(f"{SVG}line")} == {"var(--faint)"}
    assert "+0.20, no interval, unfinished" in {text.text for text in picture.iter(f"{SVG}text")}


def test_numbers_have_the_decimals_of_their_scale() -> None:
    picture = drawn(Row("a - b", 0.0019, -0.0011, 0.0049), Row("a - c", 123_400_000.0, 1e8, 1.5e8))
    texts = {text.text for text in picture.iter(f"{SVG}text")}
    assert {"+0.0019 (-0.0011 to 0.0049)", "+123,400,000 (100,000,000 to 150,000,000)"} <= texts


def test_everything_is_within_the_picture() -> None:
    picture = drawn(Row("a - b", 1234.5, -math.inf, math.inf, "too few blocks"), Row("a longer name - c", 0.0, 0.0, 0.0))
    width = float(picture.get("width", 0))
    places = [float(mark.get(name, 0)) for mark in picture.iter() for name in ("x", "x1", "x2", "cx") if mark.get(name)]
    assert 0 <= min(places) <= max(places) < width


def test_no_difference_at_all_can_be_drawn() -> None:
    assert drawn(Row("a - b", 0.0, 0.0, 0.0)).get("class") == "forest"
