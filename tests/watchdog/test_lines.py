"""Bytes to lines: separators, decoration, split reads, lines of megabytes."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from gpuctl.watchdog.lines import LONGEST, Line, LineReader, read_line
from gpuctl.watchdog.reading import line_reader


def _all(reader: LineReader, pieces: list[bytes]) -> list[Line]:
    lines = [line for piece in pieces for line in reader.feed(piece)]
    return lines + reader.close()


@given(
    st.lists(st.sampled_from(["a", "loss 1", "\n", "\r", "\r\n", "é", " ", "[rank1]: x"]), max_size=40),
    st.integers(1, 7),
)
def test_split_reads_give_the_same_lines(parts: list[str], size: int) -> None:
    data = "".join(parts).encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert _all(line_reader(), pieces) == _all(line_reader(), [data])


def test_carriage_returns_separate_lines_that_share_a_number() -> None:
    lines = _all(line_reader(), [b"one\n 10%|#\r 20%|##\rError: x\nlast"])
    assert [(line.number, line.text) for line in lines] == [
        (1, "one"),
        (2, " 10%|#"),
        (2, " 20%|##"),
        (2, "Error: x"),
        (3, "last"),
    ]


def test_prefixes_are_told_apart_from_the_text() -> None:
    line = read_line(b'[rank3]:   File "/srv/t.py", line 4, in step', 1)
    assert (line.rank, line.text) == (3, '  File "/srv/t.py", line 4, in step')
    line = read_line(b"(EngineCore_DP0 pid=12) ERROR 01-02 10:11:12 [core.py:700] ValueError: no", 1)
    assert (line.level, line.text) == ("error", "ValueError: no")
    assert read_line(b"[1,2]<stderr>:Traceback (most recent call last):", 1).rank == 2
    assert read_line(b"> quoted", 1).quoted


def test_levels() -> None:
    def level(text: str) -> str:
        return read_line(text.encode(), 1).level

    assert level("2024-01-01 10:00:00.000: W tensorflow/core/x.cc:1] y") == "warning"
    assert level("[W socket.cpp:426] [c10d] The server socket has failed") == "warning"
    assert level("/x/y.py:82: UserWarning: z") == "warning"
    assert level("INFO 01-01 10:00:00 [a.py:1] b") == "info"
    assert level("ERROR trainer: x") == "error"
    assert level("step 1 loss 2") == ""


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    assert read_line(b"caf\xe9 \xff", 1).text == "caf\ufffd \ufffd"


def test_a_line_without_an_end_is_read_in_pieces_in_linear_time() -> None:
    needle = b"RuntimeError: CUDA error: an illegal memory access was encountered "
    begin = time.process_time()
    lines = _all(line_reader(), [b"x" * 65536] * 160 + [needle] + [b"y" * 65536] * 10)
    assert time.process_time() - begin < 5
    assert any("illegal memory access" in line.text for line in lines)
    assert all(len(line.text) <= LONGEST for line in lines)


def test_a_long_log_is_read_around_what_matters() -> None:
    ordinary = b"".join(b"step %d | loss 1.0\n" % n for n in range(50_000))
    lines = _all(line_reader(), [ordinary + b"ValueError: no space left on device\n" + ordinary])
    assert len(lines) < 20_000
    (found,) = [line for line in lines if "no space" in line.text]
    assert found.number == 50_001


def test_every_line_is_read_while_somebody_waits_for_one() -> None:
    reader = line_reader()
    reader.whole = True
    assert len(reader.feed(b"step\n" * 50_000)) == 50_000


def test_a_stem_in_every_line_does_not_make_it_slow() -> None:
    looked = []
    reader = LineReader([b"error"], lambda text: bool(looked.append(text)))
    reader.feed(b"error rate 0.1\n" * 200_000)
    assert len(looked) < 1000
