/* libOpenCL.so.1 */
#include "stub.h"

EXPORT int clGetPlatformIDs(uint32_t entries, void **platforms, uint32_t *count) {
  BEHAVE(clGetPlatformIDs);
  for (uint32_t index = 0; platforms && index < entries; index++)
    platforms[index] = (void *)(uintptr_t)(index + 1);
  if (count) *count = (uint32_t)number("cl_platforms", 1);
  return 0;
}
static int tell(const void *value, size_t length, size_t size, void *out, size_t *needed) {
  if (needed) *needed = length;
  if (out && size >= length) memcpy(out, value, length);
  return out && size < length ? -30 : 0;
}
static int tell_words(const char *text, size_t size, void *out, size_t *needed) {
  return tell(text, strlen(text) + 1, size, out, needed);
}
EXPORT int clGetPlatformInfo(void *platform, uint32_t what, size_t size, void *out,
                             size_t *needed) {
  (void)platform;
  BEHAVE(clGetPlatformInfo);
  if (what == 0x0901) return tell_words("OpenCL 3.0 stub", size, out, needed);
  return tell_words(words("cl_platform", "QUALCOMM Snapdragon(TM)"), size, out, needed);
}
EXPORT int clGetDeviceIDs(void *platform, uint64_t kind, uint32_t entries, void **devices,
                          uint32_t *count) {
  (void)platform, (void)kind;
  BEHAVE(clGetDeviceIDs);
  for (uint32_t index = 0; devices && index < entries; index++)
    devices[index] = (void *)(uintptr_t)(index + 1);
  if (count) *count = (uint32_t)number("cl_count", 1);
  return 0;
}
EXPORT int clGetDeviceInfo(void *device, uint32_t what, size_t size, void *out, size_t *needed) {
  BEHAVE(clGetDeviceInfo);
  uint64_t wide = 0;
  uint32_t narrow = 0;
  switch (what) {
    case 0x1000:
      wide = (uint64_t)number("cl_type", 4);
      return tell(&wide, 8, size, out, needed);
    case 0x101F:
      wide = (uint64_t)number("cl_memory", 8LL << 30);
      return tell(&wide, 8, size, out, needed);
    case 0x1001:
      narrow = (uint32_t)number("cl_vendor", 0x5143);
      return tell(&narrow, 4, size, out, needed);
    case 0x1035:
      narrow = (uint32_t)number("cl_unified", 1);
      return tell(&narrow, 4, size, out, needed);
    case 0x102B:
      return tell_words(words("cl_name", "QUALCOMM Adreno(TM) 750"), size, out, needed);
    case 0x102F:
      return tell_words("OpenCL 3.0 Adreno(TM) 750", size, out, needed);
    case 0x102D:
      return tell_words("E031.45", size, out, needed);
    case 0x106A: {
      unsigned char uuid[16];
      memset(uuid, 0xc0 + (int)(uintptr_t)device, sizeof uuid);
      return tell(uuid, sizeof uuid, size, out, needed);
    }
  }
  return -30;
}
