/* A stand-in for libnvidia-ml.so.1, so that real pynvml runs where there is no GPU.
 *
 * Every call reads `nvml.txt` beside this library again, so a test changes what the driver says while it runs:
 *
 *     driver 580.65.06          init 0 (what nvmlInit returns)       count 2          hang 60 (seconds, in every call)
 *     gpu 0 memory 1048576      one reading of one GPU; sizes in bytes, power in milliwatts
 *     gpu 0 compute 812:4096,813:-1     processes, pid:bytes; -1 where the driver does not say
 *     gpu 0 error 15            what every call for this GPU returns instead; `gpu 0 error.power 3` for one reading
 *     xid 0 1 31                Xid event number 0: Xid 31 on GPU 1; each is delivered once, in order
 *
 * A handle is the GPU's number plus one. Compiled with -DWITHOUT_MEMORY_V2 it is a driver from before R510.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, TIMEOUT = 10 };

typedef unsigned long long u64;

static int delivered;

/* The text after `key ` on the first such line. 0 where there is none. */
static int look(const char *key, char *value, size_t room) {
    Dl_info self;
    char path[4096], line[4096];
    size_t length = strlen(key);
    int found = 0;
    dladdr((void *)look, &self);
    snprintf(path, sizeof path, "%s", self.dli_fname);
    snprintf(strrchr(path, '/') + 1, 16, "nvml.txt");
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, room, "%s", line + length + 1);
            found = 1;
        }
    if (file) fclose(file);
    return found;
}

static u64 number(const char *key, u64 otherwise) {
    char text[64];
    return look(key, text, sizeof text) ? strtoull(text, NULL, 10) : otherwise;
}

static void hang(void) { sleep(number("hang", 0)); }

/* One reading as text; the code that the file asks for, NOT_SUPPORTED where it has no such line. */
static int reading(void *device, const char *what, char *value, size_t room) {
    char key[64];
    int gpu = (int)(size_t)device - 1, code;
    hang();
    snprintf(key, sizeof key, "gpu %d error", gpu);
    if ((code = number(key, 0))) return code;
    snprintf(key, sizeof key, "gpu %d error.%s", gpu, what);
    if ((code = number(key, 0))) return code;
    snprintf(key, sizeof key, "gpu %d %s", gpu, what);
    return look(key, value, room) ? SUCCESS : NOT_SUPPORTED;
}

static int figure(void *device, const char *what, u64 *value) {
    char text[64];
    int code = reading(device, what, text, sizeof text);
    if (code == SUCCESS) *value = strtoull(text, NULL, 10);
    return code;
}

static int small(void *device, const char *what, unsigned *value) {
    u64 wide;
    int code = figure(device, what, &wide);
    if (code == SUCCESS) *value = wide;
    return code;
}

int nvmlInitWithFlags(unsigned flags) {
    hang();
    puts("a word of the library's own, on stdout");
    fflush(stdout);
    return number("init", SUCCESS);
}

int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "an error of the stand-in"; }
int nvmlSystemGetDriverVersion(char *text, unsigned room) { return look("driver", text, room) ? SUCCESS : NOT_SUPPORTED; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("count", 0); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    char key[64];
    snprintf(key, sizeof key, "gpu %u error.handle", index);
    *device = (void *)(size_t)(index + 1);
    return number(key, SUCCESS);
}

int nvmlDeviceGetUUID(void *d, char *text, unsigned room) { return reading(d, "uuid", text, room); }
int nvmlDeviceGetName(void *d, char *text, unsigned room) { return reading(d, "name", text, room); }
int nvmlDeviceGetMinorNumber(void *d, unsigned *value) { return small(d, "minor", value); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *value) { return small(d, "power", value); }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *value) { return small(d, "limit", value); }
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *value) { return small(d, "temperature", value); }
int nvmlDeviceGetClockInfo(void *d, int clock, unsigned *value) { return small(d, "clock", value); }

int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *pending) {
    int code = small(d, "mig", now);
    *pending = *now;
    return code;
}

struct utilisation { unsigned gpu, memory; };

int nvmlDeviceGetUtilizationRates(void *d, struct utilisation *rates) {
    rates->memory = 0;
    return small(d, "utilisation", &rates->gpu);
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(void *d, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    return reading(d, "bus", pci->bus_id, sizeof pci->bus_id);
}

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };

/* v1 counts what the driver keeps as used. */
int nvmlDeviceGetMemoryInfo(void *d, struct memory *memory) {
    u64 reserved = 0;
    int code = figure(d, "memory", &memory->used);
    if (code == SUCCESS) code = figure(d, "total", &memory->total);
#ifndef WITHOUT_MEMORY_V2
    figure(d, "reserved", &reserved);
#endif
    memory->used += reserved;
    memory->free = memory->total - memory->used;
    return code;
}

#ifndef WITHOUT_MEMORY_V2
int nvmlDeviceGetMemoryInfo_v2(void *d, struct memory_v2 *memory) {
    if (memory->version != (sizeof *memory | 2 << 24)) return INVALID;
    memory->reserved = 0;
    figure(d, "reserved", &memory->reserved);
    int code = figure(d, "memory", &memory->used);
    if (code == SUCCESS) code = figure(d, "total", &memory->total);
    memory->free = memory->total - memory->reserved - memory->used;
    return code;
}
#endif

struct process { unsigned pid; u64 bytes; unsigned instance, compute; };

static int processes(void *d, const char *what, unsigned *count, struct process *out) {
    char text[4096], *rest = text;
    unsigned found = 0, room = out ? *count : 0;
    int code = reading(d, what, text, sizeof text);
    if (code != SUCCESS) return code;
    for (char *word; (word = strsep(&rest, ","));) {
        char *bytes = strchr(word, ':');
        if (!bytes) continue;
        if (found < room) out[found] = (struct process){atoi(word), strtoull(bytes + 1, NULL, 10), ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct process *p) { return processes(d, "compute", n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *n, struct process *p) { return processes(d, "graphics", n, p); }

struct event { void *device; u64 type, data; unsigned instance, compute; };

int nvmlEventSetCreate(void **set) { *set = &delivered; return number("events", SUCCESS); }
int nvmlDeviceRegisterEvents(void *d, u64 types, void *set) { return SUCCESS; }

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms) {
    char key[32], text[64];
    unsigned gpu, xid;
    snprintf(key, sizeof key, "xid %d", delivered);
    if (!look(key, text, sizeof text) || sscanf(text, "%u %u", &gpu, &xid) != 2) return TIMEOUT;
    delivered++;
    *event = (struct event){(void *)(size_t)(gpu + 1), 8, xid, ~0u, ~0u};
    return SUCCESS;
}
