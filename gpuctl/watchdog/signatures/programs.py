"""Faults of the program itself: numbers that stopped being numbers, crashes, code that can't run."""

from __future__ import annotations

from gpuctl.watchdog.signatures.signature import Weight, signature

_NAN = r"(?:nan|inf|infinite|infinity|not finite|non-?finite)\b"

TABLE = (
    signature(
        "nan_loss",
        "nan finite floatingpoint diverged is_inf invalid_loss loss_scale infinite became_inf",
        rf"found nan in |(?:loss|gradients?|grad[_ ]norm|logits) (?:is|are|was|became|has become|contains?"
        rf"|went) (?:a )?{_NAN}",
        rf"\bloss (?:returned|computed|value)\b.{{0,40}} (?:is|was|became) (?:a )?{_NAN}",
        r"non-?finite (?:loss|grad)|FloatingPointError|diverged with loss|NanLossDuringTraining|\binvalid loss\b",
        r"\bnan (?:or inf )?(?:loss |values? |gradients? )?(?:detected|encountered|found)",
        r"(?:encountered|detected|got) (?:a )?nan\b",
        r"returned nan values in its|loss scale already at minimum|minimum loss scale reached|(?:infinite|nan) loss\b",
    ),
    signature(
        "nan_loss",
        "nan",
        r"\b(?:\w*loss|grad[_ ]?norm|ppl|perplexity)['\"]?\s{0,3}[=:|]?\s{0,3}['\"]?\(?(?:tensor\()?nan\b",
        scope="finding",
        bold=True,
    ),
    signature(
        "code_error",
        "segmentation fatal_python core_dumped sigsegv smashing double_free undefined_symbol",
        r"^segmentation fault|fatal python error|\(core dumped\)|signal: segmentation fault|\bSIGSEGV\b",
        r"stack smashing|double free or corruption|undefined symbol:",
        weight=Weight.CONSEQUENCE,
    ),
    signature(
        "code_error",
        "command_not_found no_such_file open_file arguments argument conda no_module error",
        r"^\S+: (?:line \d+: )?\S+: (?:command not found|no such file or directory)|can't open file '",
        r"error: (?:unrecognized arguments|the following arguments are required|argument -)",
        r"\bno module named \S+$|^\S*(?:Syntax|Indentation|ModuleNotFound|Import)Error\b",
        weight=Weight.CONSEQUENCE,
    ),
    signature(
        "rank_failed_secondary",
        "terminate_called aborted received_signal failed_to",
        r"terminate called (?:after|without|recursively)|^Aborted\b|process received signal",
        r"failed to (?:initialize|start) (?:executor|engine|worker)",
        weight=Weight.LAUNCHER,
    ),
)
