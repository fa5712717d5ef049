"""Faults of the program itself: numbers that stopped being numbers, crashes, code that can't run."""

from __future__ import annotations

from gpuctl.watchdog.signatures.signature import Weight, signature

TABLE = (
    signature(
        "nan_loss",
        r"found nan in |(?:loss|gradients?|grad[_ ]norm) (?:is|are|was|became|has become|contains?|went) (?:a )?(?:nan|inf|infinite|not finite|non-?finite)\b.{0,40}(?:stop|abort|exit|terminat|rais|halt)?"
        r"|non-?finite (?:loss|grad)|nan (?:or inf )?(?:loss|values?|gradients?|detected|encountered|found) (?:during|in|detected|encountered|found|at|for|or)|FloatingPointError"
        r"|diverged with loss|NanLossDuringTraining|returned nan values in its|loss scale already at minimum|minimum loss scale reached|(?:infinite|invalid) loss",
        "nan|finite|floatingpoint|diverged|loss",
    ),
    signature(
        "nan_loss",
        r"\b(?:\w*loss|grad[_ ]?norm|ppl|perplexity)['\"]?\s{0,3}[=:|]?\s{0,3}['\"]?\(?(?:tensor\()?nan\b",
        "nan",
        scope="finding",
        bold=True,
    ),
    signature(
        "code_error",
        r"^segmentation fault|fatal python error|\(core dumped\)|signal: segmentation fault|\bSIGSEGV\b|stack smashing|double free or corruption|undefined symbol:",
        "segmentation|fatal python|core dumped|sigsegv|smashing|double free|undefined symbol",
        Weight.CONSEQUENCE,
    ),
    signature(
        "code_error",
        r"^\S+: (?:line \d+: )?\S+: (?:command not found|no such file or directory)|can't open file '|^usage: .{0,60}$|error: (?:unrecognized arguments|the following arguments are required|argument -)"
        r"|conda: error|no module named \S+$|^\S*(?:Syntax|Indentation|ModuleNotFound|Import)Error\b",
        "command not found|no such file|open file|usage:|arguments|argument|conda|no module|error",
        Weight.CONSEQUENCE,
    ),
    signature(
        "rank_failed_secondary",
        r"terminate called (?:after|without|recursively)|^Aborted\b|process received signal|failed to (?:initialize|start) (?:executor|engine|worker)",
        "terminate called|aborted|received signal|failed to",
        Weight.LAUNCHER,
    ),
)
