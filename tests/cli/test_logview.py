from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuctl.cli.logview import LogView


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain\n", "plain\n"),
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]0;a new title\x07after", "after"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bP1$r0m\x1b\\x", "x"),
        (b" 50%|##   |\r100%|#####|\n", " 50%|##   |\r100%|#####|\n"),
        (b"bell\x07 back\x08 nul\x00 c1\xc2\x9b", "bell back nul c1"),
        ("größe 模型".encode(), "größe 模型"),
        (b"bad \xff utf-8", "bad � utf-8"),
    ],
)
def test_shown(data: bytes, shown: str) -> None:
    whole, split = LogView(), LogView()
    assert whole.shown(data, final=True) == shown
    pieces = [split.shown(data[at : at + 1]) for at in range(len(data))]
    assert "".join(pieces) + split.shown(b"", final=True) == shown


@given(st.lists(st.binary()))
def test_no_control_character_ever_passes(pieces: list[bytes]) -> None:
    view = LogView()
    text = "".join(view.shown(piece) for piece in pieces) + view.shown(b"", final=True)
    assert all(char in "\n\t\r" or char.isprintable() or ord(char) >= 0xA0 for char in text)
