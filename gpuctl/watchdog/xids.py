"""What an Xid means: the number that NVIDIA's driver gives each kind of GPU error, in the kernel's log and in NVML.

Most are the hardware's or the driver's; a few are what a program did to the GPU; some may be either's; 45 is what the
end of any process may leave behind and says nothing.
"""

from __future__ import annotations

from typing import Mapping, Optional

NOISE = frozenset({45})

OF_PROGRAMS: Mapping[int, str] = {
    13: "a kernel did what the GPU can't: a bad address or instruction",
    31: "a kernel used an address that is not mapped",
    43: "a kernel trapped, and its channel was stopped",
    69: "a kernel or a graphics call asked for what the GPU's engine does not know",
}

OF_EITHER: Mapping[int, str] = {
    8: "the GPU stopped processing: a kernel that took too long, or a fault",
    32: "a damaged command stream: a program's, a driver's or a link's fault",
}

OF_HARDWARE: Mapping[int, str] = {
    48: "a memory error that can't be corrected (double bit)",
    61: "the GPU's own controller stopped at a breakpoint",
    62: "the GPU's own controller halted",
    63: "a faulty memory row or page was put aside",
    64: "a faulty memory row or page could not be put aside",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "unusually many corrected memory errors",
    94: "a memory error that was contained: its program was ended, others go on",
    95: "a memory error that was not contained: the GPU needs a reset",
    109: "a context switch took too long",
    110: "a security fault",
    119: "the GPU's system processor (GSP) did not answer",
    120: "the GPU's system processor (GSP) failed",
    140: "a memory error that can't be recovered from",
    143: "the GPU failed to start",
    154: "the driver asks for a reset or a restart",
    **dict.fromkeys(range(144, 151), "an NVLink error"),
}


MENDED = frozenset({63, 92})
"""What the hardware has coped with: worth telling, and no reason for an end."""


def class_of(number: int) -> Optional[str]:
    """The class that an Xid is told as; None for noise. A number that is not known here is told as the driver's or the
    hardware's: what programs cause is a short list."""
    if number in NOISE:
        return None
    return "cuda_illegal_access" if number in OF_PROGRAMS else "xid_hw"


def explains(number: int) -> bool:
    """May it be why a job failed? Only where its number says whose fault it was: the hardware's blocks a run."""
    return number in OF_PROGRAMS or (number in OF_HARDWARE and number not in MENDED)


def meaning(number: int) -> str:
    """In words, for people."""
    known = OF_PROGRAMS.get(number) or OF_EITHER.get(number) or OF_HARDWARE.get(number)
    return known or "an error of the GPU or its driver"
