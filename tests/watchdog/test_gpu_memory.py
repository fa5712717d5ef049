"""What out-of-memory messages state, in each framework's phrasing."""

from __future__ import annotations

import pytest

from gpuctl.watchdog.gpu_memory import allowed_bytes, held_by_others, is_fragmented, with_numbers
from gpuctl.watchdog.sizes import parse_size, show_size
from gpuctl.wire.incidents import Evidence

MIB, GIB = 1 << 20, 1 << 30


def _read(text: str) -> Evidence:
    return with_numbers(Evidence("gpu_oom", text), text)


def test_the_present_format_of_pytorch() -> None:
    found = _read(
        "CUDA out of memory. Tried to allocate 896.00 MiB. GPU 3 has a total capacity of 94.97 GiB of which 612.00 MiB"
        " is free. Process 81 has 1.50 GiB memory in use. Including non-PyTorch memory, this process has 92.80 GiB"
        " memory in use. 90.00 GiB allowed; Of the allocated memory 91.20 GiB is allocated by PyTorch, and 1.00 GiB is"
        " reserved by PyTorch but unallocated."
    )
    assert (found.gpu, found.requested_bytes, found.free_bytes) == (3, 896 * MIB, 612 * MIB)
    assert found.total_bytes == round(94.97 * GIB)
    assert found.in_use_bytes == round(92.8 * GIB)
    assert found.allocated_bytes == round(91.2 * GIB)
    assert found.reserved_bytes == GIB
    assert found.others == [{"pid": 81, "bytes": round(1.5 * GIB)}]
    assert allowed_bytes(found.text) == 90 * GIB


def test_the_old_format_of_pytorch() -> None:
    found = _read(
        "CUDA out of memory. Tried to allocate 2.50 GiB (GPU 1; 15.78 GiB total capacity; 9.00 GiB already allocated;"
        " 20.00 MiB free; 14.00 GiB reserved in total by PyTorch)"
    )
    assert (found.gpu, found.requested_bytes, found.free_bytes) == (1, int(2.5 * GIB), 20 * MIB)
    assert found.reserved_bytes == 5 * GIB
    assert is_fragmented(found)


@pytest.mark.parametrize(
    ("text", "size", "gpu"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes.", 4096, None),
        ("ran out of memory trying to allocate 18.00MiB (rounded to 18874369)requested by op", 18874369, None),
        ("Failed to allocate request for 3.50GiB (3758096384B) on device ordinal 3", 3758096384, 3),
        ("Out of memory allocating 1,234,567 bytes (allocated so far: 99 bytes).", 1234567, None),
        ("Out of memory error on GPU 2. Cannot allocate 3.000000GB memory on GPU 2", 3 * GIB, 2),
        ("allocating 38110.51 MiB on device 0: cudaMalloc failed: out of memory", round(38110.51 * MIB), 0),
        ("Requested amount of GPU memory (17179869184 bytes) could not be allocated.", 16 * GIB, None),
        ("Failed to allocate memory for requested buffer of size 2048", 2048, None),
        ("CUDA failure 2: out of memory ; GPU=1 ; hostname=n", None, 1),
        ("XPU out of memory. Tried to allocate 2.25 GiB. GPU 0 has", int(2.25 * GIB), 0),
        ("PyTorch limit (set by user-supplied memory fraction) : 17179869184.00 GiB", None, None),
    ],
)
def test_other_phrasings(text: str, size: int | None, gpu: int | None) -> None:
    found = _read(text)
    assert (found.requested_bytes, found.gpu) == (size, gpu)


def test_fragmentation_needs_a_share_that_would_have_served() -> None:
    base = Evidence("gpu_oom", "", requested_bytes=2 * GIB, total_bytes=80 * GIB, free_bytes=GIB)
    assert not is_fragmented(base)
    assert is_fragmented(Evidence(**{**base.to_json(), "reserved_bytes": 9 * GIB}))
    assert not is_fragmented(Evidence(**{**base.to_json(), "requested_bytes": 2 * MIB, "reserved_bytes": 50 * MIB}))
    assert not is_fragmented(Evidence(**{**base.to_json(), "requested_bytes": 30 * GIB, "reserved_bytes": 9 * GIB}))


def test_memory_of_others() -> None:
    others = [{"pid": 9, "bytes": 70 * GIB}]
    assert held_by_others(Evidence("gpu_oom", "", in_use_bytes=GIB, others=others))
    assert not held_by_others(Evidence("gpu_oom", "", in_use_bytes=40 * GIB, others=others))
    assert not held_by_others(Evidence("gpu_oom", "", in_use_bytes=GIB))


@pytest.mark.parametrize(
    ("own", "other", "asked", "total", "foreign"),
    [
        (38.0, 98.0, 8.0, 139.8, True),
        (1.0, 130.0, 8.0, 139.8, True),
        (120.0, 15.0, 8.0, 139.8, True),
        (130.0, 9.0, 8.0, 139.8, False),  # would not have fitted alone either
        (1.0, 70.0, 90.0, 80.0, False),
        (38.0, 0.3, 8.0, 139.8, False),  # without the other it would not have fitted more: it has a limit of its own
    ],
)
def test_memory_of_others_is_to_blame_where_it_would_have_fitted_alone(
    own: float, other: float, asked: float, total: float, foreign: bool
) -> None:
    free = max(0.0, min(1.0, total - own - other))
    text = f"CUDA out of memory. Tried to allocate {asked} GiB. GPU 0 has a total capacity of {total} GiB of which"
    text += f" {free} GiB is free. Process 9 has {other} GiB memory in use. Including non-PyTorch memory, this process"
    text += f" has {own} GiB memory in use. Of the allocated memory {own} GiB is allocated by PyTorch"
    found = _read(text)
    assert held_by_others(found) is foreign
    mine = Evidence.from_json({**found.to_json(), "others": [{**each, "ours": 1} for each in found.others]})
    assert not held_by_others(mine), "its own ranks on one GPU"


def test_a_pid_that_may_be_its_own_blames_nobody() -> None:
    """In a container the driver names the process by another pid, and the message does not say "this process"."""
    text = "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 3.00 GiB"
    text += " is free. Process 771203 has 136.80 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by"
    assert not held_by_others(_read(text + " PyTorch"))


def test_sizes() -> None:
    assert parse_size("98.000244MB") == 102760704
    assert parse_size("no number") is None
    assert parse_size("17179869184.00 GiB") is None
    assert show_size(896 * MIB) == "896.0 MiB"
    assert show_size(17) == "17 bytes"
