"""Framing: whatever way the bytes are cut, the same answers come out; whatever comes instead, an error does."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuctl.agent.boot import PREAMBLE
from gpuctl.agent.framing import Chunk, Framing
from gpuctl.errors import NodeUnfit

plain = st.none() | st.booleans() | st.integers() | st.text()
answers = st.dictionaries(st.text().filter(lambda key: key != "chunk"), plain, max_size=4)
chunks = st.builds(
    lambda data, offset: Chunk(data, {"chunk": len(data), "offset": offset}), st.binary(), st.integers(0)
)


def encoded(item: dict[str, Any] | Chunk) -> bytes:
    if isinstance(item, Chunk):
        return json.dumps(item.about).encode() + b"\n" + item.data
    return json.dumps(item).encode() + b"\n"


def framing_of(data: bytes, cuts: list[int]) -> Framing:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    parts = iter([data[a:b] for a, b in pairwise(edges) if a < b])

    async def read() -> bytes:
        return next(parts, b"")

    return Framing(read, "gpu1")


async def everything(framing: Framing) -> list[dict[str, Any] | Chunk]:
    found = []
    while (item := await framing.next()) is not None:
        found.append(item)
    return found


@given(st.lists(answers | chunks, max_size=6), st.lists(st.integers(0), max_size=12))
def test_the_same_answers_however_the_bytes_are_cut(items: list[dict[str, Any] | Chunk], cuts: list[int]) -> None:
    data = b"".join(map(encoded, items))
    assert asyncio.run(everything(framing_of(data, cuts))) == items


@given(st.binary(max_size=300).filter(lambda noise: b"\x01" not in noise), st.lists(st.integers(0), max_size=8))
def test_noise_before_the_preamble_is_set_aside(noise: bytes, cuts: list[int]) -> None:
    async def story() -> None:
        framing = framing_of(noise + PREAMBLE + b'{"ok": 1}\n', cuts)
        assert await framing.open()
        assert (framing.noise, await framing.next()) == (noise, {"ok": 1})

    asyncio.run(story())


@given(st.binary(max_size=300), st.lists(st.integers(0), max_size=8))
def test_anything_at_all_gives_answers_or_one_kind_of_error(data: bytes, cuts: list[int]) -> None:
    try:
        found = asyncio.run(everything(framing_of(data, cuts)))
    except NodeUnfit as error:
        assert "gpu1" in error.what and error.hint
    else:
        assert all(isinstance(item, dict | Chunk) for item in found)


def test_output_without_a_preamble() -> None:
    async def story() -> None:
        framing = framing_of(b"bash: python3: command not found\n", [])
        assert not await framing.open()
        assert framing.noise.startswith(b"bash:")
        endless = Framing(lambda: asyncio.sleep(0, b"x" * 100_000), "gpu1")
        assert not await endless.open()

    asyncio.run(story())
