/* libcuda.so.1 */
#include "stub.h"

EXPORT int cuDriverGetVersion(int *version) {
  BEHAVE(cuDriverGetVersion);
  *version = (int)number("cuda_version", 13000);
  return 0;
}
EXPORT int cuInit(unsigned flags) {
  (void)flags;
  BEHAVE(cuInit);
  return 0;
}
EXPORT int cuDeviceGetCount(int *count) {
  BEHAVE(cuDeviceGetCount);
  *count = (int)number("cuda_count", 1);
  return 0;
}
EXPORT int cuDeviceGet(int *device, int index) {
  BEHAVE(cuDeviceGet);
  *device = index;
  return 0;
}
EXPORT int cuDeviceGetName(char *name, int size, int device) {
  BEHAVE(cuDeviceGetName);
  (void)device;
  strncpy(name, words("cuda_name", "NVIDIA H200"), (size_t)size);
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  BEHAVE(cuDeviceTotalMem_v2);
  *bytes = (size_t)number("cuda_memory", 150109880320LL) + (size_t)device;
  return 0;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  BEHAVE(cuDeviceGetAttribute);
  char major[32]; /* per device: cuda_major_1 before cuda_major */
  sprintf(major, "cuda_major_%d", device);
  *value = 0;
  if (attribute == 75) *value = (int)number(setting(major) ? major : "cuda_major", 9);
  if (attribute == 76) *value = (int)number("cuda_minor", 0);
  if (attribute == 18) *value = (int)number("cuda_integrated", 0);
  return 0;
}
EXPORT int cuDeviceGetUuid(unsigned char uuid[16], int device) {
  BEHAVE(cuDeviceGetUuid);
  memset(uuid, 0xa0 + device, 16);
  return 0;
}
