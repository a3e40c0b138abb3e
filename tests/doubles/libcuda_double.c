/* Stands in for libcuda.so.1 where there is no GPU: what cuda_context_info calls of it. CUDA_DOUBLE says how it goes, such as
   "cuInit=802", "cuDevicePrimaryCtxRetain=crash", "cuInit=hang"; CUDA_DOUBLE_COUNT how many GPUs there are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int answer(const char *name) {
  const char *wanted = getenv("CUDA_DOUBLE");
  size_t length = strlen(name);
  if (!wanted || strncmp(wanted, name, length) || wanted[length] != '=') return 0;
  if (!strcmp(wanted + length, "=crash")) abort();
  if (!strcmp(wanted + length, "=hang")) for (;;) sleep(60);
  return atoi(wanted + length + 1);
}

int cuInit(unsigned int flags) { return flags ? 1 : answer("cuInit"); }
int cuGetErrorName(int code, const char **name) {
  *name = code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : code ? "CUDA_ERROR_OF_THE_DOUBLE" : "CUDA_SUCCESS";
  return 0;
}
int cuDeviceGetCount(int *count) {
  const char *wanted = getenv("CUDA_DOUBLE_COUNT");
  *count = wanted ? atoi(wanted) : 2;
  return answer("cuDeviceGetCount");
}
int cuDeviceGet(int *device, int number) {
  *device = number;
  return answer("cuDeviceGet");
}
int cuDeviceGetPCIBusId(char *address, int length, int device) {
  snprintf(address, (size_t)length, "0000:%02X:00.0", 1 + 64 * device);
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = &answer;
  return device == 1 ? answer("cuDevicePrimaryCtxRetain") : 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return device < 0 ? 101 : answer("cuDevicePrimaryCtxRelease_v2"); }
