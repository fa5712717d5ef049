"""The Pythons that this machine has: on PATH, and those that pyenv keeps."""

from __future__ import annotations

import shutil
from pathlib import Path


def pythons(*versions: str) -> list[str]:
    """Paths, as parameters for a test; none found: the test has none, and is skipped."""
    names = [f"python{version}" for version in versions]
    found = {path for name in names if (path := shutil.which(name))}
    found |= {str(path) for name in names for path in Path("~/.pyenv/versions").expanduser().glob(f"*/bin/{name}")}
    return sorted(path for path in found if "shims" not in path)
