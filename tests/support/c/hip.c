/* libamdhip64.so.7 */
#include "stub.h"

EXPORT int hipRuntimeGetVersion(int *version) {
  BEHAVE(hipRuntimeGetVersion);
  *version = (int)number("hip_version", 70051831);
  return 0;
}
EXPORT int hipGetDeviceCount(int *count) {
  BEHAVE(hipGetDeviceCount);
  *count = (int)number("hip_count", 1);
  return 0;
}
EXPORT int hipDeviceGetName(char *name, int size, int device) {
  char key[32];
  BEHAVE(hipDeviceGetName);
  sprintf(key, "hip_name_%d", device);
  strncpy(name, words(key, words("hip_name", "AMD Radeon RX 7900 XTX")), (size_t)size);
  return 0;
}
EXPORT int hipDeviceTotalMem(size_t *bytes, int device) {
  BEHAVE(hipDeviceTotalMem);
  (void)device;
  *bytes = (size_t)number("hip_memory", 25753026560LL);
  return 0;
}
EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device) {
  BEHAVE(hipDeviceGetAttribute);
  (void)device;
  *value = attribute == 16 ? (int)number("hip_integrated", 0) : 0;
  return 0;
}
EXPORT int hipDeviceGetPCIBusId(char *address, int size, int device) {
  BEHAVE(hipDeviceGetPCIBusId);
  snprintf(address, (size_t)size, "0000:%02x:00.0", device + 3);
  return 0;
}
/* The target's name stands at another offset in every version of this structure. */
EXPORT int hipGetDevicePropertiesR0600(char *properties, int device) {
  char key[32];
  BEHAVE(hipGetDevicePropertiesR0600);
  sprintf(key, "hip_gfx_%d", device);
  strcpy(properties, "AMD Radeon gfxcard");
  sprintf(properties + 1160, "%s:sramecc-:xnack-", words(key, words("hip_gfx", "gfx1100")));
  return 0;
}
