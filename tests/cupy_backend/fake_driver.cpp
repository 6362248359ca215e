// fake_driver.cpp: stands for libcuda in tests. It reads what the binding
// passes by the layouts of cuda.h, written here once more, and tells it.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

struct Attribute { // CUlaunchAttribute
  int id;
  char padding[4];
  union {
    char pad[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int serialization;
  } value;
};
struct Config { // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  void *stream;
  Attribute *attributes;
  unsigned count;
};
#if __has_include(<cuda.h>)
#include <cstddef>
#include <cuda.h>
static_assert(sizeof(Attribute) == sizeof(CUlaunchAttribute) &&
              offsetof(Attribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(Config) == sizeof(CUlaunchConfig) &&
              offsetof(Config, stream) == offsetof(CUlaunchConfig, hStream) &&
              offsetof(Config, count) == offsetof(CUlaunchConfig, numAttrs));
static_assert(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION == 4 &&
              CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION == 6);
static_assert(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8 &&
              sizeof(CUtensorMap) == 128);
static_assert(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 == 9 &&
              CU_TENSOR_MAP_DATA_TYPE_UINT8 == 0 &&
              CU_TENSOR_MAP_SWIZZLE_128B == 3 &&
              CU_TENSOR_MAP_L2_PROMOTION_L2_256B == 3);
#define WITH_HEADER "with cuda.h\n"
#else
#define WITH_HEADER ""
#endif

static std::string log_text = WITH_HEADER;
static int refuse = 0;
template <class... A> static void note(const char *format, A... arguments) {
  char line[400];
  snprintf(line, sizeof line, format, arguments...);
  log_text += line;
}

extern "C" {
const char *fake_log() { return log_text.c_str(); }
void fake_clear(int status) { log_text.clear(), refuse = status; }
int fake_cuModuleLoadData(void **module, const void *image) {
  note("load %.4s\n", (const char *)image + 1);
  *module = (void *)0x1000;
  return refuse;
}
int fake_cuModuleGetFunction(void **function, void *module, const char *name) {
  note("function %p %s\n", module, name);
  *function = (void *)0x2000;
  return refuse;
}
int fake_cuFuncSetAttribute(void *function, int attribute, int value) {
  note("attribute %p %d %d\n", function, attribute, value);
  return refuse;
}
int fake_cuLaunchKernelEx(const Config *c, void *function, void **parameters,
                          void **extra) {
  note("launch %p grid %u %u %u block %u %u %u shared %u stream %p extra %p\n",
       function, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y,
       c->block_z, c->shared, c->stream, (void *)extra);
  for (unsigned i = 0; i < c->count; ++i)
    if (c->attributes[i].id == 4)
      note("cluster %u %u %u\n", c->attributes[i].value.cluster.x,
           c->attributes[i].value.cluster.y, c->attributes[i].value.cluster.z);
    else
      note("attribute %d %d\n", c->attributes[i].id,
           c->attributes[i].value.serialization);
  note("first %llx second %x\n", *(unsigned long long *)parameters[0],
       *(unsigned *)parameters[1]);
  return refuse;
}
int fake_cuTensorMapEncodeTiled(void *map, int type, unsigned rank,
                                void *address, const uint64_t *dims,
                                const uint64_t *strides, const unsigned *box,
                                const unsigned *steps, int interleave,
                                int swizzle, int promotion, int fill) {
  note("map aligned %d type %d rank %u address %p interleave %d swizzle %d "
       "promotion %d fill %d",
       (uintptr_t)map % 64 == 0, type, rank, address, interleave, swizzle,
       promotion, fill);
  for (unsigned i = 0; i < rank; ++i)
    note(" dim %llu box %u step %u", (unsigned long long)dims[i], box[i],
         steps[i]);
  for (unsigned i = 0; i + 1 < rank; ++i)
    note(" stride %llu", (unsigned long long)strides[i]);
  note("\n");
  memset(map, 0x5a, 128);
  return refuse;
}
int fake_cuGetErrorString(int status, const char **text) {
  *text = "invalid argument";
  return status != 1;
}
}
