/* libze_loader.so.1; layouts as in ze_api.h */
#include "stub.h"

struct properties {
  uint32_t stype;
  void *next;
  uint32_t type, vendor, device, flags, subdevice, clock;
  uint64_t largest;
  uint32_t contexts, priority, threads, simd, units, subslices, slices;
  uint64_t timer;
  uint32_t timestamp_bits, kernel_timestamp_bits;
  uint8_t uuid[16];
  char name[256];
};
struct memory {
  uint32_t stype;
  void *next;
  uint32_t flags, clock, width;
  uint64_t size;
  char name[256];
};

EXPORT int zeInit(uint32_t flags) {
  (void)flags;
  BEHAVE(zeInit);
  return 0;
}
EXPORT int zeDriverGet(uint32_t *count, void **drivers) {
  BEHAVE(zeDriverGet);
  if (drivers) drivers[0] = (void *)(uintptr_t)7;
  *count = (uint32_t)number("ze_drivers", 1);
  return 0;
}
EXPORT int zeDriverGetApiVersion(void *driver, uint32_t *version) {
  (void)driver;
  BEHAVE(zeDriverGetApiVersion);
  *version = 1 << 16 | 6;
  return 0;
}
EXPORT int zeDeviceGet(void *driver, uint32_t *count, void **devices) {
  (void)driver;
  BEHAVE(zeDeviceGet);
  *count = (uint32_t)number("ze_count", 1);
  for (uint32_t index = 0; devices && index < *count; index++)
    devices[index] = (void *)(uintptr_t)(index + 1);
  return 0;
}
EXPORT int zeDeviceGetProperties(void *device, struct properties *out) {
  (void)device;
  BEHAVE(zeDeviceGetProperties);
  if (out->stype != 3) return 0x78000004;
  out->type = (uint32_t)number("ze_type", 1);
  out->vendor = 0x8086;
  out->device = 0xe20b;
  out->flags = (uint32_t)number("ze_flags", 0);
  memset(out->uuid, 0xc0, 16);
  strcpy(out->name, words("ze_name", "Intel(R) Arc(TM) B580 Graphics"));
  return 0;
}
EXPORT int zeDeviceGetMemoryProperties(void *device, uint32_t *count, struct memory *out) {
  (void)device;
  BEHAVE(zeDeviceGetMemoryProperties);
  *count = 1;
  if (out && out[0].stype != 7) return 0x78000004;
  if (out) out[0].size = (uint64_t)number("ze_memory", 12168933376LL);
  return 0;
}
