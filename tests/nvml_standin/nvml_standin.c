/*
 * libnvidia-ml.so.1 as a stand-in: the NVML calls that kvwatch makes, and those that its peers cannot do without,
 * answered from a text file.
 *
 * The file is named by KVWATCH_NVML_SCENARIO and re-read whenever its inode, size or mtime differs; write a temporary
 * file and rename it. One record a line, `#` starts a comment, values with blanks stand in double quotes, \xHH is a byte.
 * Sizes are bytes or carry KiB, MiB, GiB.
 *
 *   driver VERSION                                  driver version string (default 570.0)
 *   gpu N [uuid=S] [name=S] total=B [reserved=B] used=B [free=B] [mig=0|1] [pending=0|1]
 *                                                   used excludes reserved; the v1 call adds them. free= overrides
 *                                                   total - reserved - used. mig= makes MigMode answer (default: code 3);
 *                                                   pending= is the mode after the next reset.
 *   mig gpu=N slot=S [uuid=S] [name=S] total=B [reserved=B] used=B [free=B] [gi=N] [ci=N]
 *                                                   one MIG instance; slots without a record are holes (code 6).
 *   proc gpu=N [slot=S] pid=P type=C|G|M|CG.. used=B|na
 *                                                   one process in the compute, graphics, MPS list. Its GPU lists it too.
 *   count N                                         what GetCount says, whatever the gpu records are
 *   lost gpu=N                                      every call on the device, the handle look-up too, gives code 15
 *   stride 24|32|16                                 bytes per list entry: 32 as early R535 drivers wrote, 16 as v1
 *   fail FUNC code=N [gpu=N] [slot=S] [when=probe|fill] [after=N] [times=N]
 *                                                   FUNC is an exported symbol, or a prefix and `*`. when= picks the
 *                                                   first (NULL) or second call of a process list. after= lets the first
 *                                                   N matching calls pass, times= ends it after N failures.
 *   delay FUNC ms=N|forever [gpu=N] [slot=S] [after=N] [times=N]
 *                                                   sleeps before answering; a `forever` call returns when its record
 *                                                   has left the file.
 *   doomed code=N                                   init fails with this code, and in every process that saw it for
 *                                                   ever, whatever the file says later
 *   hold PATH                                       a file that is open from init to shutdown, as /dev/nvidiactl is
 *   print TEXT                                      written to stdout at init, as chatty libraries do
 *   crash FUNC [gpu=N]                              the call raises SIGSEGV
 *
 * A symbol that an old driver lacks is hidden at link time by a version script: see build.py.
 * No file: code 9 at init. A record that is not understood: a message on stderr, and code 999 from every call.
 * Not faithful: a hang can be killed; handles stay valid for ever; no privileges; no lock is shared between processes.
 */
#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { MAX_GPUS = 16, MAX_SLOTS = 8, MAX_PROCS = 512, MAX_RULES = 64, MAX_FIELDS = 16, TEXT = 96, LINE = 512 };
enum { WHOLE = -1, ANY = -2 };

typedef struct { int gpu, slot; } Handle;
typedef struct { bool present; char uuid[TEXT], name[TEXT]; uint64_t total, reserved, used, free; int mig, pending; unsigned gi, ci; bool lost; } Device;
typedef struct { int gpu, slot; unsigned pid; char type[8]; uint64_t used; } Process;
typedef struct { char line[LINE], kind, func[TEXT]; int code, gpu, slot; char when; long after, times, hits; double ms; } Rule;
typedef struct {
    char driver[TEXT], greeting[TEXT], held[LINE];
    Device gpus[MAX_GPUS], slots[MAX_GPUS][MAX_SLOTS];
    Process procs[MAX_PROCS];
    Rule rules[MAX_RULES];
    int n_procs, n_rules, count, stride, doom;
    bool broken;
} Scenario;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Scenario now, next;
static struct stat seen;
static bool loaded;
static int inits, doom, held = -1;
static Handle handles[MAX_GPUS][MAX_SLOTS + 1];

/* ---- scenario ---------------------------------------------------------------------------------------------------- */

static char *word(char **cursor)
{
    char *read = *cursor;
    while (isspace((unsigned char)*read)) read++;
    if (!*read || *read == '#') return NULL;
    char *start = read, *write = read;
    for (bool quoted = false; *read && (quoted || !isspace((unsigned char)*read)); read++) {
        if (*read == '"') { quoted = !quoted; continue; }
        if (read[0] == '\\' && read[1] == 'x' && isxdigit((unsigned char)read[2]) && isxdigit((unsigned char)read[3])) {
            *write++ = (char)strtol((char[]){read[2], read[3], 0}, NULL, 16);
            read += 3;
            continue;
        }
        *write++ = *read;
    }
    if (*read) read++;
    *write = 0;
    *cursor = read;
    return start;
}

static bool size_of(const char *text, uint64_t *bytes)
{
    char *end;
    *bytes = strtoull(text, &end, 0);
    if (end == text) return false;
    if (!strcmp(end, "KiB")) *bytes <<= 10;
    else if (!strcmp(end, "MiB")) *bytes <<= 20;
    else if (!strcmp(end, "GiB")) *bytes <<= 30;
    else if (*end) return false;
    return true;
}

static const char *field(char **fields, int n, const char *key)
{
    size_t length = strlen(key);
    for (int i = 0; i < n; i++)
        if (!strncmp(fields[i], key, length) && fields[i][length] == '=') return fields[i] + length + 1;
    return NULL;
}

static int number(char **fields, int n, const char *key, int otherwise)
{
    const char *text = field(fields, n, key);
    return text ? (int)strtol(text, NULL, 0) : otherwise;
}

static bool read_device(Device *device, char **fields, int n, const char *uuid, const char *name)
{
    const char *text;
    memset(device, 0, sizeof *device);
    snprintf(device->uuid, TEXT, "%s", (text = field(fields, n, "uuid")) ? text : uuid);
    snprintf(device->name, TEXT, "%s", (text = field(fields, n, "name")) ? text : name);
    if (!(text = field(fields, n, "total")) || !size_of(text, &device->total)) return false;
    if (!(text = field(fields, n, "used")) || !size_of(text, &device->used)) return false;
    if ((text = field(fields, n, "reserved")) && !size_of(text, &device->reserved)) return false;
    device->free = device->total - device->reserved - device->used;
    if ((text = field(fields, n, "free")) && !size_of(text, &device->free)) return false;
    device->mig = number(fields, n, "mig", -1);
    device->pending = number(fields, n, "pending", device->mig);
    device->gi = (unsigned)number(fields, n, "gi", 0);
    device->ci = (unsigned)number(fields, n, "ci", 0);
    device->present = true;
    return true;
}

static bool read_rule(Rule *rule, char kind, char **fields, int n, const char *line)
{
    const char *text;
    memset(rule, 0, sizeof *rule);
    snprintf(rule->line, LINE, "%s", line);
    snprintf(rule->func, TEXT, "%s", fields[0]);
    rule->kind = kind;
    rule->code = number(fields, n, "code", -1);
    rule->gpu = number(fields, n, "gpu", ANY);
    rule->slot = number(fields, n, "slot", ANY);
    rule->when = (text = field(fields, n, "when")) ? *text : 0;
    rule->after = number(fields, n, "after", 0);
    rule->times = number(fields, n, "times", -1);
    text = field(fields, n, "ms");
    if (kind == 'd') rule->ms = text && strcmp(text, "forever") ? atof(text) : -1;
    for (int i = 0; i < now.n_rules; i++)
        if (!strcmp(now.rules[i].line, rule->line)) rule->hits = now.rules[i].hits;
    return kind == 'f' ? rule->code >= 0 : kind == 'd' ? text != NULL : true;
}

static bool read_record(Scenario *into, char *cursor, const char *line)
{
    char uuid[TEXT], *fields[MAX_FIELDS], *kind = word(&cursor);
    int n = 0;
    if (!kind) return true;
    while (n < MAX_FIELDS && (fields[n] = word(&cursor))) n++;
    if (!n) return false;
    int gpu = number(fields, n, "gpu", 0), slot = number(fields, n, "slot", WHOLE), first = atoi(fields[0]);
    if (gpu < 0 || gpu >= MAX_GPUS || slot < WHOLE || slot >= MAX_SLOTS) return false;
    if (!strcmp(kind, "driver")) return snprintf(into->driver, TEXT, "%s", fields[0]) > 0;
    if (!strcmp(kind, "print")) return snprintf(into->greeting, TEXT, "%s", fields[0]) > 0;
    if (!strcmp(kind, "hold")) return snprintf(into->held, LINE, "%s", fields[0]) > 0;
    if (!strcmp(kind, "doomed")) return (into->doom = number(fields, n, "code", 0)) > 0;
    if (!strcmp(kind, "count")) return (into->count = first) >= 0;
    if (!strcmp(kind, "stride")) return (into->stride = first) == 16 || first == 24 || first == 32;
    if (!strcmp(kind, "lost")) return into->gpus[gpu].lost = true;
    if (!strcmp(kind, "gpu")) {
        if (first < 0 || first >= MAX_GPUS) return false;
        bool lost = into->gpus[first].lost;
        snprintf(uuid, TEXT, "GPU-00000000-0000-0000-0000-%012d", first);
        bool good = read_device(&into->gpus[first], fields, n, uuid, "NVIDIA Stand-in");
        into->gpus[first].lost = lost;
        return good;
    }
    if (!strcmp(kind, "mig")) {
        if (slot == WHOLE) return false;
        snprintf(uuid, TEXT, "MIG-00000000-0000-0000-%04d-%012d", gpu, slot);
        return read_device(&into->slots[gpu][slot], fields, n, uuid, "NVIDIA Stand-in MIG");
    }
    if (!strcmp(kind, "proc")) {
        const char *used = field(fields, n, "used"), *type = field(fields, n, "type");
        if (into->n_procs == MAX_PROCS || !used || !type || !field(fields, n, "pid")) return false;
        Process *process = &into->procs[into->n_procs++];
        *process = (Process){.gpu = gpu, .slot = slot, .pid = (unsigned)strtoul(field(fields, n, "pid"), NULL, 0)};
        snprintf(process->type, sizeof process->type, "%s", type);
        process->used = UINT64_MAX;
        return !strcmp(used, "na") || size_of(used, &process->used);
    }
    if (into->n_rules == MAX_RULES) return false;
    if (!strcmp(kind, "fail")) return read_rule(&into->rules[into->n_rules++], 'f', fields, n, line);
    if (!strcmp(kind, "delay")) return read_rule(&into->rules[into->n_rules++], 'd', fields, n, line);
    if (!strcmp(kind, "crash")) return read_rule(&into->rules[into->n_rules++], 'c', fields, n, line);
    return false;
}

/* Called with the lock held. */
static void refresh(void)
{
    struct stat status;
    const char *path = getenv("KVWATCH_NVML_SCENARIO");
    if (!path || stat(path, &status)) {
        loaded = false;
        return;
    }
    if (loaded && status.st_ino == seen.st_ino && status.st_size == seen.st_size &&
        status.st_mtim.tv_sec == seen.st_mtim.tv_sec && status.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "re");
    if (!file) return;
    char line[LINE], copy[LINE];
    memset(&next, 0, sizeof next);
    strcpy(next.driver, "570.0");
    next.count = -1;
    next.stride = 24;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        strcpy(copy, line);
        if (read_record(&next, copy, line)) continue;
        fprintf(stderr, "nvml stand-in: not understood: %s\n", line);
        next.broken = true;
    }
    fclose(file);
    now = next;
    seen = status;
    loaded = true;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static bool matches(const Rule *rule, const char *func, Handle at, char when)
{
    size_t length = strlen(rule->func);
    bool named = length && rule->func[length - 1] == '*' ? !strncmp(rule->func, func, length - 1) : !strcmp(rule->func, func);
    return named && (rule->gpu == ANY || rule->gpu == at.gpu) && (rule->slot == ANY || rule->slot == at.slot) &&
           (!rule->when || rule->when == when);
}

static bool due(Rule *rule)
{
    long hit = rule->hits++;
    return hit >= rule->after && (rule->times < 0 || hit < rule->after + rule->times);
}

static bool in_file(const char *line)
{
    for (int i = 0; i < now.n_rules; i++)
        if (!strcmp(now.rules[i].line, line)) return true;
    return false;
}

/* Called with the lock held; sleeps without it. */
static void hold(const Rule *rule)
{
    char line[LINE];
    double left = rule->ms;
    strcpy(line, rule->line);
    while (left != 0 && loaded && in_file(line)) {
        double step = left < 0 || left > 10 ? 10 : left;
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = (long)(step * 1e6)}, NULL);
        pthread_mutex_lock(&lock);
        if (left > 0) left -= step;
        refresh();
    }
}

/* Takes the lock, applies delays and failures, and says what the call has to return if not SUCCESS. */
static int enter(const char *func, Handle at, char when)
{
    pthread_mutex_lock(&lock);
    refresh();
    for (int i = 0; i < now.n_rules; i++) {
        Rule *rule = &now.rules[i];
        if (rule->kind == 'd' && matches(rule, func, at, when) && due(rule)) hold(rule);
    }
    if (!loaded) return DRIVER_NOT_LOADED;
    if (now.broken) return UNKNOWN;
    for (int i = 0; i < now.n_rules; i++) {
        Rule *rule = &now.rules[i];
        if (rule->kind == 'd' || !matches(rule, func, at, when) || !due(rule)) continue;
        if (rule->kind == 'c') {
            signal(SIGSEGV, SIG_DFL);
            raise(SIGSEGV);
        }
        return rule->code;
    }
    if (!inits && strncmp(func, "nvmlInit", 8)) return UNINITIALIZED;
    if (at.gpu >= 0 && now.gpus[at.gpu].lost) return GPU_IS_LOST;
    return SUCCESS;
}

static int leave(int code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

static const Handle NOWHERE = {ANY, WHOLE};

static Device *device_at(Handle at)
{
    Device *device = at.slot == WHOLE ? &now.gpus[at.gpu] : &now.slots[at.gpu][at.slot];
    return device->present ? device : NULL;
}

/* ---- the library ------------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int code = enter(__func__, NOWHERE, 0);
    if (now.doom) doom = now.doom;
    if (code == SUCCESS && doom) code = doom;
    if (code == SUCCESS) {
        inits++;
        if (*now.held && held < 0) held = open(now.held, O_RDWR | O_CLOEXEC);
        if (*now.greeting) puts(now.greeting), fflush(stdout);
    }
    return leave(code);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    int code = enter(__func__, NOWHERE, 0);
    if (code == SUCCESS && --inits == 0 && held >= 0) close(held), held = -1;
    return leave(code);
}

const char *nvmlErrorString(int code)
{
    return code == UNKNOWN ? "Unknown Error" : "Stand-in Error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    int code = enter(__func__, NOWHERE, 0);
    if (code == SUCCESS) snprintf(version, length, "%s", now.driver);
    return leave(code);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    int code = enter(__func__, NOWHERE, 0);
    if (code == SUCCESS) {
        *count = 0;
        for (int i = 0; i < MAX_GPUS; i++)
            if (now.gpus[i].present) *count = (unsigned)i + 1;
        if (now.count >= 0) *count = (unsigned)now.count;
    }
    return leave(code);
}

static void *handle_to(int gpu, int slot)
{
    Handle *handle = &handles[gpu][slot + 1];
    *handle = (Handle){gpu, slot};
    return handle;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    int code = enter(__func__, (Handle){index < MAX_GPUS ? (int)index : ANY, WHOLE}, 0);
    if (code == SUCCESS && (index >= MAX_GPUS || !now.gpus[index].present)) code = INVALID_ARGUMENT;
    if (code == SUCCESS) *handle = handle_to((int)index, WHOLE);
    return leave(code);
}

int nvmlDeviceGetIndex(const Handle *at, unsigned *index)
{
    int code = enter(__func__, *at, 0);
    if (code == SUCCESS) *index = (unsigned)(at->slot == WHOLE ? at->gpu : at->slot);
    return leave(code);
}

static int text_of(const char *func, const Handle *at, char *text, unsigned length, bool uuid)
{
    int code = enter(func, *at, 0);
    Device *device = code == SUCCESS ? device_at(*at) : NULL;
    if (code == SUCCESS && !device) code = NOT_FOUND;
    if (code == SUCCESS) snprintf(text, length, "%s", uuid ? device->uuid : device->name);
    return leave(code);
}

int nvmlDeviceGetUUID(const Handle *at, char *text, unsigned length) { return text_of(__func__, at, text, length, true); }
int nvmlDeviceGetName(const Handle *at, char *text, unsigned length) { return text_of(__func__, at, text, length, false); }

int nvmlDeviceGetMemoryInfo(const Handle *at, Memory *memory)
{
    int code = enter(__func__, *at, 0);
    Device *device = code == SUCCESS ? device_at(*at) : NULL;
    if (code == SUCCESS && !device) code = NOT_FOUND;
    if (code == SUCCESS) *memory = (Memory){device->total, device->free, device->used + device->reserved};
    return leave(code);
}

int nvmlDeviceGetMemoryInfo_v2(const Handle *at, Memory2 *memory)
{
    int code = enter(__func__, *at, 0);
    Device *device = code == SUCCESS ? device_at(*at) : NULL;
    if (code == SUCCESS && !device) code = NOT_FOUND;
    if (code == SUCCESS && memory->version != (sizeof *memory | 2u << 24)) code = ARGUMENT_VERSION_MISMATCH;
    if (code == SUCCESS) *memory = (Memory2){memory->version, device->total, device->reserved, device->free, device->used};
    return leave(code);
}

static int list(const char *func, const Handle *at, unsigned *count, unsigned char *entries, char type)
{
    unsigned room = *count, n = 0;
    int code = enter(func, *at, entries ? 'f' : 'p');
    if (code != SUCCESS) return leave(code);
    if (!device_at(*at)) return leave(NOT_FOUND);
    for (int i = 0; i < now.n_procs; i++) {
        const Process *process = &now.procs[i];
        bool here = process->gpu == at->gpu && (at->slot == WHOLE || process->slot == at->slot);
        if (!here || !strchr(process->type, type)) continue;
        if (entries && n < room && (n + 1) * (unsigned)now.stride <= room * 24) {
            unsigned char *entry = entries + n * (unsigned)now.stride;
            unsigned ids[2] = {UINT32_MAX, UINT32_MAX};
            if (process->slot != WHOLE) {
                ids[0] = now.slots[process->gpu][process->slot].gi;
                ids[1] = now.slots[process->gpu][process->slot].ci;
            }
            memset(entry, 0, (size_t)now.stride);
            memcpy(entry, &process->pid, 4);
            memcpy(entry + 8, &process->used, 8);
            if (now.stride >= 24) memcpy(entry + 16, ids, 8);
        }
        n++;
    }
    *count = n;
    return leave(n > room ? INSUFFICIENT_SIZE : SUCCESS);
}

#define LIST(name, type) \
    int name(const Handle *at, unsigned *count, unsigned char *entries) { return list(__func__, at, count, entries, type); }
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'C')
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')

int nvmlDeviceGetMigMode(const Handle *at, unsigned *current, unsigned *pending)
{
    int code = enter(__func__, *at, 0);
    if (code == SUCCESS && now.gpus[at->gpu].mig < 0) code = NOT_SUPPORTED;
    if (code == SUCCESS) *current = (unsigned)now.gpus[at->gpu].mig, *pending = (unsigned)now.gpus[at->gpu].pending;
    return leave(code);
}

int nvmlDeviceGetMaxMigDeviceCount(const Handle *at, unsigned *count)
{
    int code = enter(__func__, *at, 0);
    if (code == SUCCESS) *count = now.gpus[at->gpu].mig < 0 ? 0 : MAX_SLOTS - 1;
    return leave(code);
}

int nvmlDeviceGetMigDeviceHandleByIndex(const Handle *at, unsigned slot, void **handle)
{
    int code = enter(__func__, (Handle){at->gpu, slot < MAX_SLOTS ? (int)slot : WHOLE}, 0);
    if (code == SUCCESS && (slot >= MAX_SLOTS || !now.slots[at->gpu][slot].present)) code = NOT_FOUND;
    if (code == SUCCESS) *handle = handle_to(at->gpu, (int)slot);
    return leave(code);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const Handle *at, void **handle)
{
    int code = enter(__func__, *at, 0);
    if (code == SUCCESS && at->slot == WHOLE) code = INVALID_ARGUMENT;
    if (code == SUCCESS) *handle = handle_to(at->gpu, WHOLE);
    return leave(code);
}

int nvmlDeviceGetGpuInstanceId(const Handle *at, unsigned *id)
{
    int code = enter(__func__, *at, 0);
    if (code == SUCCESS && at->slot == WHOLE) code = NOT_SUPPORTED;
    if (code == SUCCESS) *id = now.slots[at->gpu][at->slot].gi;
    return leave(code);
}

int nvmlDeviceGetComputeInstanceId(const Handle *at, unsigned *id)
{
    int code = enter(__func__, *at, 0);
    if (code == SUCCESS && at->slot == WHOLE) code = NOT_SUPPORTED;
    if (code == SUCCESS) *id = now.slots[at->gpu][at->slot].ci;
    return leave(code);
}
