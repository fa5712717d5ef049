"""The zipapp that is copied to a node: `build()` gives its bytes and their digest."""

from gpuctl.bundle.build import Bundle, build

__all__ = ["Bundle", "build"]
