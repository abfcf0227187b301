"""The chart of a peak."""

import xml.etree.ElementTree as ET
from collections import Counter

from bench.chart import write_chart

SVG = "{http://www.w3.org/2000/svg}"


def test_the_chart_is_svg_with_percentiles_and_every_run_in_a_bar(tmp_path):
    write_chart(tmp_path / "chart.svg", "a peak", Counter({0: 10, 50: 80, 120: 10}))
    drawing = ET.parse(tmp_path / "chart.svg")  # noqa: S314 - our own
    texts = [text.text for text in drawing.iter(f"{SVG}text")]
    assert "a peak" in texts
    assert "p50 50 ms" in texts
    assert "p99 120 ms" in texts
    bars = [rect for rect in drawing.iter(f"{SVG}rect") if rect.get("fill") != "white"]
    assert len(bars) == 3


def test_a_chart_of_nothing_is_a_chart(tmp_path):
    write_chart(tmp_path / "chart.svg", "nothing", Counter())
    assert ET.parse(tmp_path / "chart.svg").getroot().tag == f"{SVG}svg"  # noqa: S314 - our own
