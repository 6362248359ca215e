// emu.h: what kernel code sees of the emulator. CUDA's keywords, types, variables and functions, and the host half of the prelude.
//
// Included before every kernel, so it leaves out the standard library's big headers: <cmath> alone would double the time of a build.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <initializer_list>

#include "cuda_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define POEM_DEVICE inline
// Call sites come from default arguments, which the compiler evaluates at the caller.
#define POEM_SITE_ONLY ::poem::emu::Site site = {__builtin_FILE(), __builtin_LINE()}
#define POEM_SITE , POEM_SITE_ONLY
// All shared memory lies in one arena for each block, so that it can be filled, guarded and watched. A declaration is known by its tag.
#define POEM_SHARED(T, name, dims)  \
  using name##_type = T dims;       \
  static const char name##_tag = 0; \
  name##_type& name = *reinterpret_cast<name##_type*>(::poem::emu::static_shared(&name##_tag, sizeof(name##_type)))
#define POEM_DYNAMIC_SHARED(name) uint8_t* name = ::poem::emu::dynamic_shared()

namespace poem::emu {

struct Site {
  const char* file;
  int line;
};
struct BuiltIns {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};
extern BuiltIns built_ins;  // of the running thread

// Shared memory.
void* static_shared(const void* tag, size_t bytes);
uint8_t* dynamic_shared();
uint32_t shared_address(const void* p);

// Barriers and warp functions.
enum class Reduce { none, any, all, count };
int block_barrier(Reduce reduce, int predicate, Site site);
void warp_barrier(unsigned mask, Site site);
enum class Shuffle { index, up, down, exclusive_or };
uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t value, int argument, int width, Site site);
unsigned ballot(unsigned mask, bool predicate, Site site);
bool elect_lane(Site site);
void barrier_sync(int id, int threads, Site site);
void barrier_arrive(int id, int threads, Site site);
void set_registers(int count, Site site);

// Global memory.
void check_constant(const void* p, size_t bytes, Site site);
void thread_fence();
void grid_dependency_wait();
enum class MemoryOrder { relaxed, acquire, release, both };
// Brackets an integer atomic: between the two, its accesses are judged as one.
void atomic_begin(const void* p, size_t bytes, MemoryOrder order, bool writes, Site site);
void atomic_end();

// cp.async.
void cp_async(uint32_t target, const void* source, uint32_t size, uint32_t bytes, Site site);
void cp_async_commit();
void cp_async_wait(int groups);
void cp_async_mbarrier_arrive(uint32_t bar, Site site);

// Matrix instructions. The registers of the calling lane.
enum class Format { bf16, f16, e4m3, e5m2 };
void ldmatrix(uint32_t* registers, int count, bool transposed, uint32_t row, Site site);
void stmatrix(const uint32_t* registers, int count, bool transposed, uint32_t row, Site site);
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Format format, Site site);
void wgmma_fence();
void wgmma_commit(Site site);
void wgmma_wait(int groups, Site site);
void wgmma(float* d, int n, const uint32_t* a_registers, uint64_t a, uint64_t b, bool accumulate, Format format, bool transposed_a,
           bool transposed_b, Site site);

// mbarriers, bulk copies, clusters.
void mbarrier_init(uint32_t bar, uint32_t count, Site site);
void mbarrier_init_fence();
void mbarrier_arrive(uint32_t bar, uint32_t bytes, Site site);
void mbarrier_wait(uint32_t bar, uint32_t parity, Site site);
void fence_async_proxy();
void tma_load(uint32_t target, const void* map, uint32_t bar, std::initializer_list<int> at, uint16_t blocks, Site site);
void tma_store(const void* map, uint32_t source, std::initializer_list<int> at, Site site);
void bulk_load(uint32_t target, const void* source, uint32_t bytes, uint32_t bar, Site site);
void bulk_store(void* target, uint32_t source, uint32_t bytes, Site site);
void bulk_commit();
void bulk_wait(int groups);
uint32_t cluster_rank();
uint32_t cluster_size();
void cluster_arrive(Site site);
void cluster_wait(Site site);
void* cluster_pointer(const void* p, uint32_t rank);
uint32_t cluster_address(uint32_t address, uint32_t rank);

// Functions that err as much as a device may.
float exp2_approx(float x);
float log2_approx(float x);
float reciprocal_approx(float x);
float rsqrt_approx(float x);
float tanh_approx(float x);
inline uint32_t lop3(int table, uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r = 0;
  for (int i = 0; i < 8; ++i)
    if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return r;
}
inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = (uint64_t)high << 32 | low;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t pick = selector >> 4 * i & 15;
    uint32_t byte = bytes >> 8 * (pick & 7) & 0xff;
    if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << 8 * i;
  }
  return r;
}

template <class T> inline T shuffle_bits(Shuffle kind, unsigned mask, T value, int argument, int width, Site site) {
  static_assert(sizeof(T) <= 8 && __is_trivially_copyable(T), "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = shuffle(kind, mask, bits, argument, width, site);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T, class Change> inline T atomic(T* p, MemoryOrder order, Site site, Change change) {
  static_assert(T(3) / 2 == T(1), "atomics are for integers: the sum of floats would depend on the order of arrival");
  atomic_begin(p, sizeof(T), order, true, site);
  const T before = *p;
  *p = change(before);
  atomic_end();
  return before;
}
inline uint32_t atomic_add(uint32_t* p, uint32_t v, Site s) {
  return atomic(p, MemoryOrder::relaxed, s, [v](uint32_t old) { return old + v; });
}
inline uint32_t atomic_add_acq_rel(uint32_t* p, uint32_t v, Site s) {
  return atomic(p, MemoryOrder::both, s, [v](uint32_t old) { return old + v; });
}
inline void store_release(uint32_t* p, uint32_t v, Site s) {
  atomic(p, MemoryOrder::release, s, [v](uint32_t) { return v; });
}
inline uint32_t load_acquire(const uint32_t* p, Site s) {
  atomic_begin(p, sizeof *p, MemoryOrder::acquire, false, s);
  const uint32_t value = *p;
  atomic_end();
  return value;
}
template <class V> inline V load_constant(const V* p, Site site) {
  check_constant(p, sizeof(V), site);
  return *p;
}

// A kernel as the launcher calls it: arguments unpacked from pointers, as cuLaunchKernel takes them.
using Entry = void (*)(void** arguments);
template <class T> __attribute__((no_sanitize("thread"))) inline T argument(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}
template <size_t... I> struct Indices {};
template <auto KERNEL> struct Bind;
template <class... A, void (*KERNEL)(A...)> struct Bind<KERNEL> {
  template <size_t... I> __attribute__((no_sanitize("thread"))) static void run(void** p, Indices<I...>) { KERNEL(argument<A>(p[I])...); }
  static void call(void** p) { run(p, Indices<__integer_pack(sizeof...(A))...>{}); }
  // How many arguments, and their sizes: the launcher compares them with the record of the launch.
  static int sizes(uint32_t* out) {
    const uint32_t all[] = {(uint32_t)sizeof(A)..., 0};
    for (size_t i = 0; i < sizeof...(A); ++i) out[i] = all[i];
    return sizeof...(A);
  }
};

}  // namespace poem::emu

#include "cuda_functions.h"
