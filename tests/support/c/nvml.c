/* libnvidia-ml.so.1 */
#include "stub.h"

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

/* STUB_nvml_used and _pid: what is used, all of it by that process. */
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
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count,
                                                   struct process *found) {
  BEHAVE(nvmlDeviceGetComputeRunningProcesses_v3);
  (void)handle;
  *count = setting("nvml_pid") ? 1 : 0;
  if (*count) {
    found->pid = (unsigned)number("nvml_pid", 0);
    found->used = (unsigned long long)number("nvml_used", 0);
  }
  return 0;
}
