"""The machine around the GPUs: memory, shared memory, disks, ports, downloads, files that are not what they should be."""

from __future__ import annotations

from gpuctl.watchdog.signatures.signature import Weight, signature

TABLE = (
    signature(
        "shm_exhausted",
        r"/dev/shm\b.{0,120}(?:no space|fail|error|cannot|unable|size \d+)|(?:fail|error|cannot|unable).{0,120}/dev/shm\b|insufficient shared memory|out of shared memory"
        r"|killed by signal: bus error|unable to (?:open|write|mmap|allocate|resize) .{0,60}(?:shared memory|</?torch_|/torch_)|unexpected bus error|shared memory (?:object|segment|limit).{0,60}(?:fail|error|exceed|no space)"
        r"|not enough (?:space in )?shared memory|shm(?:get|open|_open).{0,40}(?:no space|failed)",
        "shm|shared memory|bus error|torch_",
        bold=True,
    ),
    signature(
        "timeout",
        r"cancelled at .{0,40} due to time limit|exceeded (?:wall|time) ?(?:clock )?(?:time )?limit|TERM_RUNLIMIT",
        "time limit|wall|term_runlimit",
    ),
    signature(
        "host_oom",
        r"oom[-_]kill(?:er)? ?event|\boom-kill:|invoked oom-killer|out of memory: kill(?:ed)? process|\bOOMKilled\b|systemd-oomd killed|oom_reaper"
        r"|due to memory pressure|running low on memory|(?:tasks?|processes|step|job).{0,40}\bOOM Killed|srun: error: .{0,80}: Out Of Memory|OUT_OF_MEMORY\b.{0,20}(?:exit|state)"
        r"|exceeded (?:job |step )?(?:virtual )?memory limit|TERM_MEMLIMIT|memory limit .{0,30}exceeded"
        r"|killed by signal: (?:killed|9)|DefaultCPUAllocator: (?:can't|not enough)|alloc_cpu|unable to allocate .{0,40}for an array"
        r"|^(?:[\w.]+\.)?MemoryError\b|cannot allocate memory|java heap space|GC overhead limit|std::bad_alloc|requires more system memory"
        r"|worker .{0,40}(?:sigkill|killed)|(?:out of|insufficient) (?:host|system|cpu) memory|cuda\w*HostAlloc.{0,60}(?:fail|out of memory)",
        "oom|memory|heap|bad_alloc|killed|gc overhead|alloc|term_memlimit|sigkill",
        bold=True,
    ),
    signature("host_oom", r"^(?:\S+: (?:line )?\d+: +\d+ )?Killed\b(?!:)(?: {2,}\S.*|$)", "killed", bold=True),
    signature(
        "disk_full",
        r"no space left on device|\bENOSPC\b|errno 28\b|disk quota exceeded|errno 122\b|failed writing (?:file|zip)|file write failed|disk (?:is )?full"
        r"|not enough (?:free )?(?:disk )?space|no usable temporary directory|unexpected pos \d+ vs|insufficient disk",
        "space|errno 28|enospc|quota|errno 122|writ|disk|temporary directory|unexpected pos",
    ),
    signature(
        "port_in_use",
        r"address already in use|EADDRINUSE|errno:? 98\b|port \d+ (?:is )?(?:already )?(?:in use|allocated|taken|occupied)|only one usage of each socket address",
        "already|eaddrinuse|98|port|socket address",
    ),
    signature(
        "checkpoint_corrupt",
        r"PytorchStreamReader failed|failed finding central directory|UnpicklingError|invalid load key|pickle data was truncated|ran out of input|invalid magic number"
        r"|error while deserializing header|HeaderTooLarge|(?:Metadata)?IncompleteBuffer|InvalidHeader\w*|safetensor\w*error|not a zip ?file|BadZipFile|unexpected EOF, expected"
        r"|(?:file|checkpoint|archive|shard|model|weights|tensor|data)\b.{0,60}\b(?:is |are |be |might be |appears? )?(?:corrupt(?:ed)?|truncated|incomplete)\b|truncated file"
        r"|DataLossError|(?:checksum|crc|sha256|hash)\w* (?:does not|doesn't|did not) match|checksum mismatch|unable to open file \(.{0,60}(?:signature|truncated)"
        r"|data is not within the file bounds|unexpected end of (?:file|data)|bad magic|invalid checkpoint",
        "pytorchstreamreader|directory|pickl|load key|input|magic|header|incomplete|safetensor|zip|eof|corrupt|truncated|dataloss|match|mismatch|signature|bounds|unexpected end|checkpoint",
    ),
    signature(
        "auth_or_download",
        r"\bgated ?repo|gated\. you must|(?:40[134]|429|50[0234]) (?:client|server) error|RepositoryNotFoundError|EntryNotFoundError|HfHubHTTPError|OfflineMode\w*"
        r"|invalid (?:user )?(?:token|credentials|api ?key)|(?:unauthorized|forbidden)\b.{0,40}(?:url|token|access|http)|must be authenticated|could(?:n't| not) connect to .{0,40}https?:"
        r"|max retries exceeded with url|name or service not known|temporary failure in name resolution|name resolution|is not a (?:local folder|valid model identifier)"
        r"|wandb.{0,40}(?:api ?key|not logged in|401)|(?:no|unable to locate) credentials|NoCredentialsError|AccessDenied|SSLError|ReadTimeout|ConnectTimeout"
        r"|(?:failed|unable|error).{0,20}download|authentication (?:failed|required)|permission denied \(publickey|could not read username",
        "gated|error|repo|token|credential|key|url|authenticat|connect|retries|resol|identifier|denied|timeout|download|unauthorized|forbidden|username|offline|http",
        Weight.CAUSE,
    ),
)
