"""Ranks that talk to each other, and the launchers that report their deaths: mostly what another failure looks like from
outside, so most of it weighs less than a cause."""

from __future__ import annotations

from gpuctl.watchdog.signatures.signature import Weight, signature

_SECOND = Weight.CONSEQUENCE
_THIRD = Weight.LAUNCHER

TABLE = (
    signature(
        "nccl_timeout",
        r"caught collective operation timeout|watchdog got stuck|watchdog hang|(?:nccl|rccl|hccl|collective|allreduce|all_?gather|barrier)\b.{0,80}?\b(?:timed ?out|timeout (?:at|after|exceeded|expired))"
        r"|timed out waiting \d+ ?ms for (?:recv|send)|timed out after \d+ seconds waiting for clients|wait timeout after \d+ ?ms|\bsocket timeout\b",
        "timeout|timed out|watchdog",
        _SECOND,
        bold=True,
    ),
    signature("nccl_error", r"duplicate GPU detected", "duplicate gpu", bold=True),
    signature(
        "nccl_error",
        r"\b(?:NCCL|RCCL) error\b|\bnccl(?:System|Internal|UnhandledCuda|Remote)Error|\bnccl(?:InvalidUsage|InvalidArgument)\b|DistBackendError"
        r"|NCCL WARN .{0,120}(?:fail|error|mismatch|closed|refused|unreachable|no route|timed out|invalid)|\bNCCL (?:failure|failed)|failed, NCCL error"
        r"|NCCL communicator was aborted|ncclCommInitRank\w* failed|NET/(?:IB|OFI|Socket).{0,60}(?:error|fail)",
        "nccl|rccl|distbackenderror|net/",
        _SECOND,
        bold=True,
    ),
    signature(
        "host_oom",  # who else sends SIGKILL: nobody, unless a launcher says that it did
        r"(?:signal|signals\.|died with|received|terminated by|exitcode ?: ?-?|exit ?code:? -?|return ?code ?=? ?-?|status:? ?)[^.]{0,24}?(?:SIGKILL|signal 9\b|\b-?9 \(|\(?killed\)?(?=[.\s]|$))"
        r"|return code = -9\b|exitcode ?: -9\b|exit(?:ed)?(?: with)?(?: code| status)?[ :=]{1,3}137\b|exited on signal 9\b|Signal 9 \(SIGKILL\)",
        "sigkill|signal 9|killed|-9|137",
        _SECOND,
    ),
    signature(
        "rank_failed_secondary",
        r"ChildFailedError|ProcessRaisedException|ProcessExitedException|sending process \d+ closing signal|failed \(exitcode: -?\d+\) local_rank"
        r"|exits? with return code ?= ?-?[1-9]|(?:mpirun|mpiexec|prun|prterun) (?:has exited|noticed|detected)|returned\s+a non-zero exit code"
        r"|(?:process|rank|node|worker|child|job|task|ssh|shard|subprocess|engine|pod|container|pid)\b[^:]{0,60}? (?:exited|terminated|failed|died|crashed|ended)(?: unexpectedly)?(?: with|:)? ?(?:an? )?(?:non-?zero )?(?:exit ?)?(?:code|status|signal|exitcode)?[ =:]{1,2}(?!0\b)-?\d+"
        r"|engine core initialization failed|engine(?:core)? (?:process )?(?:died|failed to start)|enginedeaderror|see (?:the )?root cause above|child process unexpectedly failed|received sigquit from a child"
        r"|worker \S*(?:exited|died) unexpectedly|exited unexpectedly|connection closed by peer|socket closed|rendezvous\w*(?:closed|connection|timeout)\w*error"
        r"|connection reset by peer|broken pipe|sigkill_handler|killing subprocess|srun: error: .{0,60}: exited with exit code|actor(?:died|unavailable)error|workercrashederror"
        r"|the actor died unexpectedly|\bexit status (?!0\b)\d+|another (?:rank|process) (?:has )?failed|aborting (?:the )?job|(?:webserver|server|shard \d+) crashed"
        r"|one or more processes exited with non-zero status|rank \d+ .{0,30}(?:terminated|failed|died)",
        "childfailed|process|exit|mpirun|mpiexec|engine|root cause|sigquit|unexpectedly|peer|socket closed|rendezvous|pipe|sigkill|subprocess|actor|worker|failed|abort|crashed|non-zero|died|terminated",
        _THIRD,
        bold=True,
    ),
)
