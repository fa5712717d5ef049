"""The README's pictures can be drawn from real runs today, and what they show is what such runs still print.

Numbers, pids, ids and how many attempts there were differ between two drawings; the kinds of lines and columns may not.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from docs.pictures import make

_TEXT = re.compile(r'<text[^>]*?x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>')


def lines(picture: Path) -> list[str]:
    rows: dict[float, dict[float, str]] = {}
    for x, y, text in _TEXT.findall(picture.read_text(encoding="utf-8")):
        rows.setdefault(float(y), {})[float(x)] = html.unescape(text).replace("\xa0", " ")
    return ["".join(text for _x, text in sorted(rows[y].items())).rstrip() for y in sorted(rows)]


def event_types(picture: Path) -> set[str]:
    found = (re.match(r"\d\d:\d\d:\d\d  .{3}  (\w+)", line) for line in lines(picture))
    return {match[1] for match in found if match}


def columns(picture: Path) -> list[list[str]]:
    return [re.findall("[A-Z]+", line) for line in lines(picture) if re.fullmatch("[A-Z ]{20,}", line)]


def test_the_demo(tmp_path: Path) -> None:
    drawn, kept = make.draw_demo(tmp_path), make.HERE / "demo.svg"
    assert event_types(drawn) == event_types(kept) >= {"incident", "cleaning", "gpus_empty", "relaunching"}
    for picture in (drawn, kept):
        text = "\n".join(lines(picture))
        assert "gpu_oom on GPU 0: asked for 896.00 MiB" in text
        assert "succeeded; GPUs 0-7: all of them at 0 MiB" in text


def test_a_node_at_work(tmp_path: Path) -> None:
    drawn, kept = make.draw_node(tmp_path), make.HERE / "node.svg"
    assert columns(drawn) == columns(kept)
    assert len(columns(kept)) == 2
    for picture in (drawn, kept):
        assert {"succeeded", "running", "loading"} <= set(" ".join(lines(picture)).split())


@pytest.mark.parametrize("name", ["demo.svg", "node.svg"])
def test_a_picture_fetches_nothing(name: str) -> None:
    text = (make.HERE / name).read_text(encoding="utf-8")
    assert not re.search(r"@font-face|@import|url\((?!#)|<image|href", text)
