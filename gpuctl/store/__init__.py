"""The controller's SQLite: which runs were launched from here, and how they were last seen.

A copy that can be thrown away: the truth is in the nodes' journals. It only serves to know at once on which node a run
is, what "the newest launched from here" means, and what to complete in the shell.
"""

from gpuctl.store.store import Launched, Store

__all__ = ["Launched", "Store"]
