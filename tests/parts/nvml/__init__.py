"""The stand-in driver: `nvml.c` compiled, and the text file that steers it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")

H200 = {
    "name": "NVIDIA H200",
    "total": 150754820096,
    "reserved": 644874240,
    "memory": 0,
    "utilisation": 0,
    "power": 79000,
    "limit": 700000,
    "temperature": 31,
    "clock": 345,
    "mig": 0,
    "compute": "",
    "graphics": "",
}
"""An idle H200 as it was measured. Sizes in bytes, power in milliwatts."""


class StandInDriver:
    """A driver with two idle GPUs, in whose bus order the second comes first. Change `gpus` and `lines`, then `say`."""

    def __init__(self, folder: Path, *, memory_v2: bool = True) -> None:
        self.library = folder / "libnvidia-ml.so.1"
        self._text = folder / "nvml.txt"
        compile_library(self.library, memory_v2=memory_v2)
        self.lines: dict[str, object] = {"driver": "580.65.06", "init": 0, "count": 2}
        self.gpus: list[dict[str, object]] = [
            {**H200, "uuid": "GPU-bbbb", "bus": "00000000:61:00.0", "minor": 1},
            {**H200, "uuid": "GPU-aaaa", "bus": "00000000:06:00.0", "minor": 0},
        ]
        self.say()

    def say(self) -> None:
        """Writes the steering file, whole or not at all: the library may read it at any moment."""
        lines = [f"{key} {value}" for key, value in self.lines.items()]
        lines += [f"gpu {n} {key} {value}" for n, gpu in enumerate(self.gpus) for key, value in gpu.items()]
        aside = self._text.with_suffix(".new")
        aside.write_text("\n".join(lines) + "\n")
        aside.rename(self._text)


def compile_library(library: Path, *, memory_v2: bool = True) -> None:
    # The soname is what pynvml's own dlopen finds once `nvml_library` has been loaded by its path.
    flags = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1"] + (
        [] if memory_v2 else ["-DWITHOUT_MEMORY_V2"]
    )
    try:
        subprocess.run(["gcc", *flags, "-o", str(library), str(SOURCE)], check=True)
    except FileNotFoundError:
        pytest.skip("gcc is not installed")
