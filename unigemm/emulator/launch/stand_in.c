// The CUDA runtime functions that a compiled CuTe host function refers to, with no CUDA behind them.
// A kernel's handle is its name; launches go to a function that the emulator connects.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef int (*launcher)(const char *kernel, const void *config, void **parameters);
static launcher launch_of;
static int shared_bytes_of;

void unigemm_emulator_connect(launcher launch, int shared_bytes) {
  launch_of = launch;
  shared_bytes_of = shared_bytes;
}

int TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

int _cudaGetDevice(int *device) { return *device = 0; }
int _cudaSetDevice(int device) { return device; }
int _cudaGetDeviceCount(int *count) { return *count = 1, 0; }
// All that is asked for is how much shared memory a CTA may have.
int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute != 97) return 1;  // cudaDevAttrMaxSharedMemoryPerBlockOptin
  return *value = shared_bytes_of, 0;
}
int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  return *value = 0, 0;
}
int _cudaFuncSetAttribute(void *kernel, int attribute, int value) { return 0; }
int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
  return 0;
}
int _cudaLibraryLoadData(void **library, const void *code) { return *library = library, 0; }
int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  return (*kernel = strdup(name)) ? 0 : 2;
}
int _cudaLaunchKernelEx(const void *config, void *kernel, void **parameters) {
  return launch_of ? launch_of(kernel, config, parameters) : 3;
}
int cuda_dialect_init_library_once(void **slot, int (*init)(void **), int (*load)(void **, int),
                                   void *report) {
  if (*slot) return 0;
  void *library = NULL;
  if (init(&library) || (load && load(&library, 0))) return -1;
  *slot = library;
  return 0;
}
void cuda_dialect_unload_library_once(void **slot) { *slot = NULL; }
int CuteDSLRT_TVMFFISetRaisedCudaError(int code) {
  return TVMFFIErrorSetRaisedFromCStr("RuntimeError", "the emulated launch failed"), -1;
}
