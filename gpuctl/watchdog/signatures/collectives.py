"""Ranks that talk to each other, and the launchers that report their deaths: mostly what another failure looks like
from outside, so most of it weighs less than a cause."""

from __future__ import annotations

from gpuctl.watchdog.signatures.signature import Weight, signature

_PROCESS = r"\b(?:process|rank|node|worker|child|job|task|ssh|shard|subprocess|engine|pod|container|pid|launcher)\b"
_ENDED = r"(?:exited|exits|terminated|failed|died|crashed|ended)"
_CODE = r"(?:exit ?)?(?:code|status|exitcode)"

TABLE = (
    signature(
        "nccl_timeout",
        "timeout timed_out timedout watchdog",
        r"caught collective operation timeout|watchdog got stuck|watchdog hang",
        r"(?:nccl|rccl|hccl|collective|all_?reduce|all_?gather|barrier|broadcast)\b.{0,80}?\b(?:timed ?out"
        r"|timeout (?:at|after|exceeded|expired))",
        r"timed out waiting \d+ ?ms for (?:recv|send)|timed out after \d+ seconds waiting for clients",
        r"\bsocket (?:has )?timed ?out after|Rendezvous\w*Timeout",
        r"wait timeout after \d+ ?ms|\bsocket timeout\b|(?:store|rendezvous).{0,60}timed ?out",
        weight=Weight.CONSEQUENCE,
        bold=True,
    ),
    signature("nccl_error", "duplicate_gpu", r"duplicate GPU detected", bold=True),
    signature(
        "nccl_error",
        "nccl rccl horovodinternal distbackenderror net/ib net/ofi net/socket rendezvous",
        r"\b(?:NCCL|RCCL) (?:error|failure|failed)\b|\bnccl(?:System|Internal|UnhandledCuda|Remote)Error",
        r"DistBackendError",
        r"\bnccl(?:InvalidUsage|InvalidArgument)\b|NCCL communicator was aborted|ncclCommInitRank\w* failed",
        r"NCCL WARN .{0,120}(?:fail|error|mismatch|closed|refused|unreachable|no route|timed out|invalid)",
        r"\b(?:nccl|rccl)[A-Z]\w+ failed\b|HorovodInternalError",
        r"\bNCCL operation \S+ failed|RendezvousConnectionError",
        r"NET/(?:IB|OFI|Socket).{0,60}(?:error|fail)",
        weight=Weight.CONSEQUENCE,
        bold=True,
    ),
    signature(
        "host_oom",  # nobody else sends SIGKILL, but for a launcher that says so
        "sigkill signal_9 signal:_9 killed -9 137",
        r"(?:signals?\.?|died with|received|terminated by|killed by)[^.]{0,24}?(?:SIGKILL|signal:? 9\b)",
        r"signal:? 9 \(|SIGKILL\(-9\)",
        r"(?:return code|returncode|exit ?code|exitcode|status) ?[=:]? ?-9\b|\bsignal: killed\b|exited on signal 9\b",
        r"exit(?:ed)?(?: with)?(?: code| status)?[ :=]{1,3}137\b",
        weight=Weight.CONSEQUENCE,
    ),
    signature(
        "rank_failed_secondary",
        "childfailed process exit mpirun mpiexec prun engine root_cause sigquit unexpectedly peer socket_closed pipe"
        " sigkill subprocess actor worker failed abort crashed non-zero died terminated signalexception another"
        " abruptly termination fatal_error",
        r"ChildFailedError|ProcessRaisedException|ProcessExitedException|SignalException|ActorDiedError",
        r"WorkerCrashedError",
        r"sending process \d+ closing signal|failed \(exitcode: -?\d+\) local_rank|killing subprocess|sigkill_handler",
        r"exits? with return code ?= ?-?[1-9]|returned\s+a non-zero exit code|exited with non-zero status",
        r"\b(?:mpirun|mpiexec|prun|prterun) (?:has exited|noticed|detected)|one or more processes exited",
        rf"{_PROCESS}[^:]{{0,60}}? {_ENDED}(?: unexpectedly)?(?: with|:|,)? ?(?:an? )?(?:non-?zero )?{_CODE}?["
        rf" =:]{{1,2}}(?!0\b)-?\d+",
        rf"{_PROCESS}[^:]{{0,40}}? (?:exited|died|terminated|crashed|failed) unexpectedly",
        r"(?:unexpectedly|abruptly) (?:failed|exited|died|terminated)|terminated (?:abruptly|unexpectedly)",
        r"engine(?:core)? (?:core )?initialization failed|engine ?core (?:process )?(?:died|failed to start)",
        r"EngineDeadError",
        r"see (?:the )?(?:stack trace )?(?:\(?above\)? )?(?:for )?(?:the )?root cause|root cause above",
        r"received sigquit from a child|connection (?:closed|reset) by peer|broken pipe|socket closed",
        r"\b(?:webserver|server|shard \d+) crashed|another (?:rank|process|worker|task|node) (?:has )?(?:failed|died)",
        r"bad termination of one of your|distributed service detected (?:a )?fatal error",
        r"aborting (?:the )?job\b",
        r"srun: error: .{0,60}: exited with exit code|the actor died unexpectedly|\bexit status (?!0\b)\d+",
        weight=Weight.LAUNCHER,
        bold=True,
    ),
)
