// The functions of the CUDA runtime that a compiled CuTe host function calls, over those of the
// driver. They are linked into each kernel's shared object, which then needs no other library; the
// addresses of the driver's functions are handed in by `host_code.py`.
typedef int status;
enum { INVALID_CONTEXT = 201 };

static struct driver {
  status (*launch)(const void *config, void *kernel, void **parameters, void **extra);
  status (*load)(void **library, const void *code, void *, void *, unsigned, void *, void *,
                 unsigned);
  status (*kernel)(void **kernel, void *library, const char *name);
  status (*get)(int *value, int attribute, void *kernel, int device);
  status (*set)(int attribute, int value, void *kernel, int device);
  status (*device)(int *value, int attribute, int device);
  status (*use)(void *context);
  status (*error_name)(status error, const char **name);
} driver;
static void *library, *context;
static int device;

// Of the object file: they load the machine code, and look its kernels up for one device.
extern status __cute_internal_gemm_cuda_init(void **library);
extern status __cute_internal_gemm_cuda_load_to_device(void **library, int device);

// Loads the kernels for a device, whose primary context is handed in, before the first launch.
__attribute__((visibility("default")))
status unigemm_open(const struct driver *functions, int on, void *primary) {
  driver = *functions;
  device = on;
  context = primary;
  status error = __cute_internal_gemm_cuda_init(&library);
  return error ? error : __cute_internal_gemm_cuda_load_to_device(&library, device);
}

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN int cuda_dialect_init_library_once(void **slot, void *init, void *load, void *report) {
  if (!*slot) *slot = library;
  return *slot ? 0 : -1;
}
// At the end of the process, when the driver may be gone.
HIDDEN void cuda_dialect_unload_library_once(void **slot) { *slot = 0; }

HIDDEN status _cudaLibraryLoadData(void **into, const void *code) {
  return driver.load(into, code, 0, 0, 0, 0, 0, 0);
}
HIDDEN status _cudaLibraryGetKernel(void **kernel, void *of, const char *name) {
  return driver.kernel(kernel, of, name);
}
HIDDEN status _cuKernelGetAttribute(int *value, int attribute, void *kernel, int on) {
  return driver.get(value, attribute, kernel, on);
}
HIDDEN status _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int on) {
  return driver.set(attribute, value, kernel, on);
}
HIDDEN status _cudaFuncSetAttribute(void *kernel, int attribute, int value) {
  return driver.set(attribute, value, kernel, device);
}
HIDDEN status _cudaDeviceGetAttribute(int *value, int attribute, int on) {
  return driver.device(value, attribute, on);
}
HIDDEN status _cudaGetDevice(int *on) { return *on = device, 0; }
HIDDEN status _cudaSetDevice(int on) { return 0; }

// `cudaLaunchConfig_t` is laid out as `CUlaunchConfig`: its 64 bits of shared memory are below 2^32.
HIDDEN status _cudaLaunchKernelEx(const void *config, void *kernel, void **parameters) {
  status error = driver.launch(config, kernel, parameters, 0);
  if (error != INVALID_CONTEXT) return error;
  // A thread that has used no CUDA has no context yet. The CUDA runtime takes the primary one.
  error = driver.use(context);
  return error ? error : driver.launch(config, kernel, parameters, 0);
}

HIDDEN void CuteDSLRT_TVMFFISetRaisedCudaError(
    void (*raise)(const char *kind, const char **parts, int count), status error) {
  const char *name = 0;
  driver.error_name(error, &name);
  const char *parts[] = {"the CUDA driver refused to launch a CuTe kernel: ",
                         name ? name : "an unknown error"};
  raise("UnigemmError", parts, 2);
}
