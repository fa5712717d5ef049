"""The machine around the GPUs: memory, shared memory, disks, ports, downloads, files that are not what they should
be."""

from __future__ import annotations

from gpuctl.watchdog.signatures.signature import Weight, signature

_SHM = r"/dev/shm\b"  # noqa: S108 - the name is looked for in logs, nothing is put there
_CANNOT = r"(?:fail\w*|unable|cannot|can't|could not|error)"

TABLE = (
    signature(
        "shm_exhausted",
        "shm shared_memory bus_error torch_",
        rf"{_SHM}.{{0,120}}(?:no space|fail|error|cannot|unable|\(size \d+)|{_CANNOT}.{{0,120}}{_SHM}",
        r"insufficient shared memory|out of shared memory|not enough (?:space in )?shared memory",
        r"killed by signal: bus error|unexpected bus error|shm_?(?:get|open).{0,40}(?:no space|failed)",
        rf"{_CANNOT} (?:to )?(?:open|write|mmap|allocate|resize|create) .{{0,60}}(?:shared memory|</?torch_|/torch_)",
        r"shared memory (?:object|segment|limit).{0,60}(?:fail|error|exceed|no space)",
        bold=True,
    ),
    # A page of a mapping that its file system could not supply: in a container that is /dev/shm.
    signature(
        "shm_exhausted",
        "bus_error sigbus signal_7",
        r"fatal python error: bus error|^bus error\b|(?:signal|by|received)\b.{0,24}\b(?:SIGBUS|signal:? 7\b)",
        weight=Weight.CONSEQUENCE,
    ),
    signature(
        "timeout",
        "time_limit walltime wall_time =term_runlimit",
        r"due to time limit|exceeded (?:wall ?)?time ?limit|walltime .{0,20}exceeded|TERM_RUNLIMIT",
    ),
    signature(
        "host_oom",
        "oom memory heap bad_alloc killed gc_overhead alloc =term_memlimit =out_of_memory =bad_alloc",
        r"oom[-_]kill(?:er)? ?event|\boom-kill:|invoked oom-killer|\bOOMKilled\b|systemd-oomd killed|oom_reaper",
        r"out of memory: kill(?:ed)? process|(?:tasks?|processes|step|job).{0,40}\bOOM Killed",
        r"killed .{0,160}due to memory pressure|memory pressure \(OOM\)|running low on memory|memory threshold",
        r"srun: error: .{0,80}: Out Of Memory|\bOUT_OF_MEMORY\b(?=.{0,20}(?:exit|state|0:\d+))",
        r"exceeded (?:job |step )?(?:virtual )?memory limit|TERM_MEMLIMIT|memory limit .{0,30}exceeded",
        r"killed by signal: (?:killed|9)|DefaultCPUAllocator: (?:can't|not enough)|alloc_cpu\b",
        r"unable to allocate .{0,40}for an array|^(?:[\w.]+\.)?MemoryError\b|cannot allocate memory|std::bad_alloc",
        r"java heap space|GC overhead limit|requires more system memory|cuda\w*HostAlloc.{0,60}(?:fail|out of memory)",
        r"(?:out of|insufficient|not enough) (?:host|system|cpu) memory",
        r"\bmalloc of size \d+ failed|low on resource: memory|\bmemory allocation of \d+ bytes failed",
        r"\bheap out of memory|reached heap limit|job killed: \w*mem\b.{0,60}exceed",
        r"(?:fail\w*|unable) to allocate (?:the )?CPU\w* buffer|ggml_backend_cpu\w*: failed to allocate",
        bold=True,
    ),
    # The shell's word for SIGKILL: on a line of its own, or with the line number, pid and command.
    signature("host_oom", "killed", r"^(?:\S+: (?:line )?\d+: +\d+ )?Killed\b(?!:)(?: {2,}\S.*|$)", bold=True),
    signature(
        "disk_full",
        "space errno_28 enospc quota errno_122 writ disk temporary_directory unexpected_pos",
        r"no space left on device|\bENOSPC\b|errno 28\b|disk quota exceeded|errno 122\b",
        r"(?:error|fatal|failed|database or)\b.{0,60}disk (?:is )?full\b",
        r"failed writing (?:file|zip)|file write failed|unexpected pos \d+ vs|insufficient disk",
        r"not enough (?:free )?disk space|not enough free space|no usable temporary directory",
    ),
    signature(
        "port_in_use",
        "already eaddrinuse errno: errno_98 port socket_address bind",
        r"address already in use|EADDRINUSE|errno:? 98\b|only one usage of each socket address",
        r"(?:fail\w*|could(?:n't| not)|cannot|can't|unable) (?:to )?bind\b(?!.{0,80}(?:cannot assign|denied))",
        r"port \d+ (?:is )?(?:already )?(?:in use|allocated|taken|occupied)|cannot (?:bind|assign).{0,30}port",
    ),
    signature(
        "checkpoint_corrupt",
        "pytorchstreamreader central_directory pickl load_key ran_out_of_input magic header incomplete safetensor zip"
        " eof compressed_file failed_to_read corrupt truncated dataloss match signature bounds unexpected_end",
        r"PytorchStreamReader failed|failed finding central directory|UnpicklingError|invalid load key",
        r"ran out of input",
        r"pickle data was truncated|invalid magic (?:number|character)|bad magic|error while deserializing header",
        r"HeaderTooLarge|(?:Metadata)?IncompleteBuffer|InvalidHeader\w*|not a zip ?file|BadZipFile",
        r"(?:checkpoint|archive|shard|model|weights|tensor|safetensors|\.(?:pt|pth|bin|ckpt"
        r"|gguf))\b.{0,60}\b(?:corrupt(?:ed)?|truncated|incomplete)\b",
        r"(?:corrupt(?:ed)?|truncated) (?:file|checkpoint|archive)|file (?:might|may) be corrupt\w*",
        r"compressed file ended before|failed to read (?:the )?(?:magic|header|tensor (?:data|info))",
        r"unexpected EOF, expected|unexpected end of (?:file|data)|DataLossError|data is not within the file bounds",
        r"(?:checksum|crc|sha256|hash)\w* (?:mismatch|does not match|doesn't match|did not match)",
        r"unable to (?:synchronously )?open file \(.{0,60}(?:signature|truncated)",
    ),
    signature(
        "auth_or_download",
        "gated client_error server_error repository entrynotfound hfhub offline token credential key authenticat"
        " connect max_retries resol identifier denied download unauthorized forbidden username sslerror timeout pull"
        " manifest error_40 returned_error",
        r"\bgated ?repo|gated\. you must|(?:40[134]|429|50[0234]) (?:client|server) error|HfHubHTTPError",
        r"OfflineMode\w*",
        r"RepositoryNotFoundError|EntryNotFoundError|invalid (?:user )?(?:token|credentials|api ?key)",
        r"must be authenticated|\bAuthenticationError\b|error code: 40[13]\b",
        r"(?:incorrect|wrong|expired) (?:api ?key|token)",
        r"(?:unauthorized|forbidden)\b.{0,40}(?:url|token|access|http)|could(?:n't| not) connect to .{0,40}https?:",
        r"max retries exceeded with url|name or service not known|temporary failure in name resolution",
        r"is not a (?:local folder|valid model identifier)|(?:no|unable to locate) credentials|NoCredentialsError",
        r"wandb.{0,60}(?:api[ _]?key|not logged in|401)|\bAccessDenied\b|SSLError|(?:Read|Connect)Timeout(?:Error)?:",
        r"(?:failed|unable|error).{0,20}\bdownload|authentication (?:failed|required)|permission denied \(publickey",
        r"^error 40[1347]: |server returned error: HTTP/\S+ [45]\d\d",
        r"could not read username|could not resolve host",
        r"ImagePullBackOff|ErrImagePull|failed to pull image|pull access denied|manifest (?:unknown|for \S+ not found)",
    ),
)
