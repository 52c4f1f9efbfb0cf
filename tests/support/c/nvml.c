/* libnvidia-ml.so.1 */
#include "stub.h"

#include <dirent.h>

EXPORT int nvmlInit_v2(void) {
  BEHAVE(nvmlInit_v2);
  return 0;
}
EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned size) {
  BEHAVE(nvmlSystemGetDriverVersion);
  strncpy(version, words("nvml_version", "580.159.04"), size);
  return 0;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
  BEHAVE(nvmlDeviceGetCount_v2);
  *count = (unsigned)number("nvml_count", 1);
  return 0;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  BEHAVE(nvmlDeviceGetHandleByIndex_v2);
  *handle = (void *)(uintptr_t)(index + 1);
  return 0;
}
EXPORT int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
  BEHAVE(nvmlDeviceGetName);
  (void)handle;
  strncpy(name, words("nvml_name", "NVIDIA H200"), size);
  return 0;
}
EXPORT int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
  BEHAVE(nvmlDeviceGetMigMode);
  (void)handle;
  *current = *pending = (unsigned)number("nvml_mig", 0);
  return 0;
}

/* STUB_nvml_used and _pid: what is used, all of it by that process; _process: by it, if less.
 * STUB_nvml_server: the process is the asking one's sibling with that name. */
struct memory { unsigned long long total, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned instance, compute; };

EXPORT int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
  BEHAVE(nvmlDeviceGetMemoryInfo);
  (void)handle;
  memory->total = 1ULL << 37;
  memory->used = (unsigned long long)number("nvml_used", 0);
  memory->free = memory->total - memory->used;
  return 0;
}
/* The process with that name and parent, or 0. */
static unsigned child_of(int wanted, const char *name) {
  char path[300], found[64];
  int parent;
  unsigned pid = 0;
  DIR *folder = opendir("/proc");
  for (struct dirent *each; folder && !pid && (each = readdir(folder));) {
    snprintf(path, sizeof path, "/proc/%s/stat", each->d_name);
    FILE *file = each->d_name[0] <= '9' ? fopen(path, "r") : NULL;
    if (!file) continue;
    int fields = fscanf(file, "%*d (%63[^)]) %*c %d", found, &parent);
    fclose(file);
    if (fields == 2 && parent == wanted && !strcmp(found, name)) pid = (unsigned)atoi(each->d_name);
  }
  if (folder) closedir(folder);
  return pid;
}

static unsigned told_process(void) {
  const char *server = setting("nvml_server");
  if (!server) return (unsigned)number("nvml_pid", 0);
  /* A sibling of ours, or its child, which computes for it. */
  unsigned sibling = child_of(getppid(), server);
  unsigned child = sibling ? child_of((int)sibling, server) : 0;
  return child ? child : sibling;
}

/* STUB_nvml_on: the only device where the process is. */
static int list(void *handle, unsigned *count, struct process *found) {
  long long only = number("nvml_on", -1);
  if (setting("nvml_mps")) return *count = 0;
  unsigned pid = only < 0 || only + 1 == (long long)(uintptr_t)handle ? told_process() : 0;
  *count = pid ? 1 : 0;
  if (pid) {
    found->pid = pid;
    found->used = strtoull(words("nvml_process", words("nvml_used", "0")), NULL, 0);
  }
  return 0;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count,
                                                   struct process *found) {
  BEHAVE(nvmlDeviceGetComputeRunningProcesses_v3);
  return list(handle, count, found);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count,
                                                    struct process *found) {
  BEHAVE(nvmlDeviceGetGraphicsRunningProcesses_v3);
  return list(handle, count, found);
}

/* STUB_nvml_mps: the process is a client of the Multi-Process Service, and only in its list. */
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count,
                                                      struct process *found) {
  BEHAVE(nvmlDeviceGetMPSComputeRunningProcesses_v3);
  (void)handle;
  *count = setting("nvml_mps") ? 1 : 0;
  if (*count) *found = (struct process){.pid = told_process(), .used = (unsigned long long)number("nvml_used", 0)};
  return 0;
}

/* STUB_nvml_xid: the number of the one event that comes, at once; without it none ever comes.
 * STUB_nvml_xid_on: the index of its device; _event: its type. */
struct event { void *device; unsigned long long type, data; unsigned instance, compute; };

EXPORT int nvmlEventSetCreate(void **events) {
  BEHAVE(nvmlEventSetCreate);
  *events = (void *)1;
  return 0;
}
EXPORT int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) {
  BEHAVE(nvmlDeviceGetSupportedEventTypes);
  (void)handle;
  *types = 0xff9f;
  return 0;
}
EXPORT int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *events) {
  BEHAVE(nvmlDeviceRegisterEvents);
  (void)handle;
  (void)events;
  return types & ~0xff9full ? 3 : 0;
}
EXPORT int nvmlEventSetWait_v2(void *events, struct event *found, unsigned milliseconds) {
  static int told;
  BEHAVE(nvmlEventSetWait_v2);
  (void)events;
  if (!told++ && setting("nvml_xid")) {
    void *first = NULL;
    nvmlDeviceGetHandleByIndex_v2((unsigned)number("nvml_xid_on", 0), &first);
    *found = (struct event){first, (unsigned long long)number("nvml_event", 8), (unsigned long long)number("nvml_xid", 0), 0, 0};
    return 0;
  }
  usleep(milliseconds * 1000);
  return 10;
}

/* STUB_nvml_gpu: percent of the last second in which the device worked. */
struct rates { unsigned gpu, memory; };

EXPORT int nvmlDeviceGetUtilizationRates(void *handle, struct rates *rates) {
  BEHAVE(nvmlDeviceGetUtilizationRates);
  (void)handle;
  rates->gpu = (unsigned)number("nvml_gpu", 100);
  rates->memory = 0;
  return 0;
}

/* STUB_nvml_sm: the process's use of the engines; _sample: when, now if that is not told.
 * STUB_nvml_worked: a file without which nothing has worked. */
struct utilization { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };

EXPORT int nvmlDeviceGetProcessUtilization(void *handle, struct utilization *found,
                                           unsigned *count, unsigned long long since) {
  BEHAVE(nvmlDeviceGetProcessUtilization);
  (void)handle;
  const char *worked = setting("nvml_worked");
  if (worked && access(worked, F_OK)) return 6;
  *count = 1;
  *found = (struct utilization){.pid = told_process(), .sm = (unsigned)number("nvml_sm", 0)};
  found->time = (unsigned long long)number("nvml_sample", (long long)since + 1);
  return 0;
}
