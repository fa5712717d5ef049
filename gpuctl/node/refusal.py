"""`Refusal`: what a verb can't or won't do, as the controller will show it."""

from __future__ import annotations

from typing import Any, Dict

# The exit codes of the command line that a node's answer can call for.
FAILED = 1
BAD_USAGE = 2
NO_SUCH_RUN = 3
UNFIT = 4
UNSAFE = 5


class Refusal(Exception):
    """`code` is the exit code of the command line; `what` is wrong and where, `hint` what to do about it."""

    def __init__(self, code: int, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.hint = hint

    def to_json(self) -> Dict[str, Any]:
        return {"error": {"code": self.code, "what": self.what, "hint": self.hint}}
