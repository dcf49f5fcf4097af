// A driver library that launches nothing: what triton's launcher and the C++ launch path call of libcuda. Each launch is
// passed to the function given to fake_on_launch; without one it returns at once.
#include <stdint.h>
#include <stdlib.h>

typedef int (*Launched)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void* stream, void** params, void** extra);
typedef struct {  // CUlaunchConfig
  unsigned gx, gy, gz, bx, by, bz, shared;
  void* stream;
  void* attributes;
  unsigned count;
} Config;

static Launched on_launch;
static int shared_memory = 166912;  // that a block may request on sm_80
static intptr_t handles;

void fake_on_launch(Launched function) { on_launch = function; }
void fake_shared_memory(int bytes) { shared_memory = bytes; }

int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** params, void** extra) {
  return on_launch ? on_launch(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra) : 0;
}
int cuLaunchKernelEx(const Config* c, void* f, void** params, void** extra) {
  if (c->count) return 1;  // no kernel here uses clusters, cooperative grids or dependent launches
  return cuLaunchKernel(f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, c->stream, params, extra);
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 12080, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 97 || attribute == 81 ? shared_memory : 1;  // per block with opt-in; per multiprocessor
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)1, 0; }
int cuCtxGetCurrent(void** context) { return *context = (void*)1, 0; }
int cuCtxSetCurrent(void* context) { return 0; }
int cuCtxGetLimit(size_t* value, int limit) { return *value = 0, 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuModuleLoadData(void** module, const void* image) { return *module = (void*)++handles, 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) { return *function = (void*)++handles, 0; }
int cuFuncGetAttribute(int* value, int attribute, void* function) { return *value = attribute == 0 ? 1024 : 0, 0; }
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void* function, int config) { return 0; }
int cuPointerGetAttribute(void* value, int attribute, uint64_t pointer) { return *(uint64_t*)value = pointer, 0; }
int cuOccupancyMaxActiveClusters(int* count, void* function, const void* config) { return *count = 1, 0; }
int cuTensorMapEncodeTiled() { return 1; }
int cuTensorMapEncodeIm2col() { return 1; }
int cuGetErrorString(int code, const char** text) {
  return *text = code == 709 ? "context is destroyed" : "invalid argument", 0;
}
