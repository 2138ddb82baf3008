// A libcuda.so.1 that runs nothing: enough of the driver's interface for Triton to load kernels and launch them, and a
// record of the launches. gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 triton_stub.c
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int Result;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned num_attributes;
} Config;
typedef struct {
    unsigned grid[3], block[3], shared;
    uint64_t stream, function, words[64];
} Record;

Record stub_records[64];
uint64_t stub_count = 0;
int stub_num_words = 0;  // how many arguments of a launch are copied, 8 bytes each
static __thread void *context;
static uint64_t loaded = 0;

static Result attribute(int *value, int which) {
    switch (which) {
        case 97: *value = 232448; break;  // shared memory of a block that asks for it
        case 81: *value = 233472; break;  // shared memory of a processor
        case 12: *value = 65536; break;   // registers of a block
        case 16: *value = 132; break;     // processors
        case 10: *value = 32; break;      // threads of a warp
        case 75: *value = 9; break;       // compute capability
        case 76: *value = 0; break;
        default: *value = 1;
    }
    return 0;
}

Result cuInit(unsigned flags) { return 0; }
Result cuDriverGetVersion(int *version) { *version = 13000; return 0; }
Result cuDeviceGetCount(int *count) { *count = 1; return 0; }
Result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
Result cuDeviceGetAttribute(int *value, int which, int device) { return attribute(value, which); }
Result cuCtxGetCurrent(void **current) { *current = context; return 0; }
Result cuCtxSetCurrent(void *current) { context = current; return 0; }
Result cuCtxGetDevice(int *device) { *device = 0; return 0; }
Result cuCtxGetLimit(size_t *value, int which) { *value = 1 << 20; return 0; }
Result cuCtxSetLimit(int which, size_t value) { return 0; }
Result cuDevicePrimaryCtxRetain(void **made, int device) { *made = (void *)0x1000; return 0; }
Result cuModuleLoadData(void **module, const void *image) {
    if (memcmp(image, "\177ELF", 4)) return 200;
    *module = (void *)(0x2000 + ++loaded);
    return 0;
}
Result cuModuleUnload(void *module) { return 0; }
Result cuModuleGetFunction(void **function, void *module, const char *name) { *function = module; return 0; }
Result cuFuncGetAttribute(int *value, int which, void *function) { *value = which == 0 ? 1024 : 0; return 0; }
Result cuFuncSetAttribute(void *function, int which, int value) { return 0; }
Result cuFuncSetCacheConfig(void *function, int which) { return 0; }
Result cuGetErrorString(Result error, const char **text) { *text = "an error of the stub"; return 0; }
Result cuPointerGetAttribute(void *value, int which, uint64_t pointer) { *(uint64_t *)value = pointer; return 0; }
Result cuPointerGetAttributes(unsigned count, void *which, void **values, uint64_t pointer) {
    for (unsigned n = 0; n < count; n++) *(uint64_t *)values[n] = pointer;
    return 0;
}
Result cuStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
Result cuOccupancyMaxActiveClusters(int *count, void *function, void *config) { *count = 1; return 0; }
Result cuTensorMapEncodeTiled(void) { return 0; }
Result cuTensorMapEncodeIm2col(void) { return 0; }
Result cuLaunchKernelEx(const Config *config, void *function, void **arguments, void **extra) {
    Record *record = &stub_records[stub_count++ % 64];
    memcpy(record->grid, config->grid, sizeof record->grid);
    memcpy(record->block, config->block, sizeof record->block);
    record->shared = config->shared;
    record->stream = (uint64_t)config->stream;
    record->function = (uint64_t)function;
    for (int n = 0; n < stub_num_words; n++) memcpy(&record->words[n], arguments[n], 8);
    return 0;
}
