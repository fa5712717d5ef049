"""How argv reaches a node: `open_transport(node)` gives the way that its inventory entry names.

The boundary is `Transport.start(argv)` and `aclose()`; `run`, `put` and `get` are functions above it. Nothing outside
this package imports an SSH library, and nothing inside it knows what it carries.
"""

from gpuctl.transport.base import Completed, Process, Terminal, Transport, run
from gpuctl.transport.opening import open_transport

__all__ = ["Completed", "Process", "Terminal", "Transport", "open_transport", "run"]
