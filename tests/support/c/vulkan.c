/* libvulkan.so.1: a loader with its devices built in; layouts as in vulkan_core.h */
#include "stub.h"

struct chain {
  uint32_t type;
  struct chain *next;
};
struct properties {
  uint32_t api, driver, vendor, device, type;
  char name[256];
  uint8_t cache_uuid[16];
  uint64_t limits_and_sparse[66];
};
struct properties2 {
  uint32_t type;
  void *next;
  struct properties properties;
};
struct driver_properties {
  uint32_t type;
  void *next;
  uint32_t id;
  char name[256], info[256];
  uint8_t conformance[4];
};
struct id_properties {
  uint32_t type;
  void *next;
  uint8_t device_uuid[16], driver_uuid[16], luid[8];
  uint32_t mask, valid;
};
struct features2 {
  uint32_t type;
  void *next;
  uint32_t features[55];
};
struct storage16_features {
  uint32_t type;
  void *next;
  uint32_t storage_buffer, uniform_buffer, push_constant, input_output;
};
struct memory {
  uint32_t type_count;
  struct { uint32_t flags, heap; } types[32];
  uint32_t heap_count;
  struct { uint64_t size; uint32_t flags; } heaps[16];
};
struct extension {
  char name[256];
  uint32_t version;
};

#define VERSION(major, minor) ((uint32_t)(major) << 22 | (uint32_t)(minor) << 12)

EXPORT int vkEnumerateInstanceVersion(uint32_t *version) {
  BEHAVE(vkEnumerateInstanceVersion);
  *version = (uint32_t)number("vulkan_version", VERSION(1, 3) | 250);
  return 0;
}
EXPORT int vkCreateInstance(const void *info, const void *allocator, void **instance) {
  (void)info, (void)allocator;
  BEHAVE(vkCreateInstance);
  *instance = (void *)(uintptr_t)1;
  return 0;
}
EXPORT int vkEnumeratePhysicalDevices(void *instance, uint32_t *count, void **devices) {
  (void)instance;
  BEHAVE(vkEnumeratePhysicalDevices);
  uint32_t have = (uint32_t)number("vulkan_count", 1);
  for (uint32_t index = 0; devices && index < *count && index < have; index++)
    devices[index] = (void *)(uintptr_t)(index + 1);
  if (!devices || *count > have) *count = have;
  return 0;
}
/* Settings may be per device: vulkan_type_1 before vulkan_type. */
static const char *of(void *device, const char *fact, char *key) {
  sprintf(key, "vulkan_%s_%d", fact, (int)(uintptr_t)device - 1);
  if (!setting(key)) sprintf(key, "vulkan_%s", fact);
  return key;
}
EXPORT void vkGetPhysicalDeviceProperties(void *device, struct properties *out) {
  char key[64];
  behave("vkGetPhysicalDeviceProperties");
  out->api = (uint32_t)number(of(device, "api", key), VERSION(1, 3) | 7);
  out->driver = 1;
  out->vendor = (uint32_t)number(of(device, "vendor", key), 0x10de);
  out->device = 0x2684;
  out->type = (uint32_t)number(of(device, "type", key), 2);
  strncpy(out->name, words(of(device, "name", key), "NVIDIA GeForce RTX 4090"), 255);
}
EXPORT void vkGetPhysicalDeviceProperties2(void *device, struct properties2 *out) {
  char key[64];
  vkGetPhysicalDeviceProperties(device, &out->properties);
  for (struct chain *item = out->next; item; item = item->next) {
    if (item->type == 1000196000) {
      struct driver_properties *driver = (void *)item;
      driver->id = (uint32_t)number(of(device, "driver_id", key), 4);
      strcpy(driver->name, words(of(device, "driver", key), "NVIDIA"));
      strcpy(driver->info, "580.159.04");
    }
    if (item->type == 1000071004)
      memset(((struct id_properties *)item)->device_uuid, 0xb0 + (int)(uintptr_t)device, 16);
  }
}
EXPORT void vkGetPhysicalDeviceFeatures2(void *device, struct features2 *out) {
  char key[64];
  behave("vkGetPhysicalDeviceFeatures2");
  /* A driver fills all of it; only a wrong layout on our side would be noticed here. */
  memset(out->features, 0xff, sizeof out->features);
  for (struct chain *item = out->next; item; item = item->next)
    if (item->type == 1000083000) {
      struct storage16_features *storage = (void *)item;
      storage->storage_buffer = (uint32_t)number(of(device, "storage16", key), 1);
      storage->uniform_buffer = storage->push_constant = storage->input_output = 1;
    }
}
EXPORT void vkGetPhysicalDeviceMemoryProperties(void *device, struct memory *out) {
  char key[64];
  out->heap_count = 3;
  out->heaps[0].size = 1ULL << 36; /* the system's, larger than the card's */
  out->heaps[1].size = (uint64_t)number(of(device, "memory", key), 25757220864LL);
  out->heaps[1].flags = 1;
  out->heaps[2].size = 256 << 20;
  out->heaps[2].flags = 1;
}
EXPORT int vkEnumerateDeviceExtensionProperties(void *device, const char *layer, uint32_t *count,
                                                struct extension *out) {
  (void)device, (void)layer;
  if (out) strcpy(out[0].name, "VK_KHR_driver_properties");
  *count = 1;
  return 0;
}
