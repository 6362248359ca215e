// cuda_functions.h: the built-in variables and functions of CUDA that kernels here may use.
#pragma once

#define threadIdx (::poem::emu::built_ins.thread)
#define blockIdx (::poem::emu::built_ins.block)
#define blockDim (::poem::emu::built_ins.block_dim)
#define gridDim (::poem::emu::built_ins.grid_dim)
#define warpSize 32

// ------------------------------------------------------------------------------------------------------------- barriers
inline void __syncthreads(POEM_SITE_ONLY) { poem::emu::block_barrier(poem::emu::Reduce::none, 0, site); }
inline int __syncthreads_or(int p POEM_SITE) { return poem::emu::block_barrier(poem::emu::Reduce::any, p, site); }
inline int __syncthreads_and(int p POEM_SITE) { return poem::emu::block_barrier(poem::emu::Reduce::all, p, site); }
inline int __syncthreads_count(int p POEM_SITE) { return poem::emu::block_barrier(poem::emu::Reduce::count, p, site); }
inline void __syncwarp(unsigned mask = ~0u POEM_SITE) { poem::emu::warp_barrier(mask, site); }
inline void __threadfence() { poem::emu::thread_fence(); }

// -------------------------------------------------------------------------------------------------------- warp functions
template <class T> inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32 POEM_SITE) {
  return poem::emu::shuffle_bits(poem::emu::Shuffle::index, mask, v, lane, width, site);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, int delta, int width = 32 POEM_SITE) {
  return poem::emu::shuffle_bits(poem::emu::Shuffle::up, mask, v, delta, width, site);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, int delta, int width = 32 POEM_SITE) {
  return poem::emu::shuffle_bits(poem::emu::Shuffle::down, mask, v, delta, width, site);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32 POEM_SITE) {
  return poem::emu::shuffle_bits(poem::emu::Shuffle::exclusive_or, mask, v, bits, width, site);
}
inline unsigned __ballot_sync(unsigned mask, int p POEM_SITE) { return poem::emu::ballot(mask, p, site); }
inline int __any_sync(unsigned mask, int p POEM_SITE) { return poem::emu::ballot(mask, p, site) != 0; }
inline int __all_sync(unsigned mask, int p POEM_SITE) { return poem::emu::ballot(mask, p, site) == mask; }

// --------------------------------------------------------------------------------------------------------------- atomics
template <class T> inline T atomicAdd(T* p, T v POEM_SITE) {
  return poem::emu::atomic(p, poem::emu::MemoryOrder::relaxed, site, [v](T old) { return (T)(old + v); });
}
template <class T> inline T atomicMax(T* p, T v POEM_SITE) {
  return poem::emu::atomic(p, poem::emu::MemoryOrder::relaxed, site, [v](T old) { return old > v ? old : v; });
}
template <class T> inline T atomicMin(T* p, T v POEM_SITE) {
  return poem::emu::atomic(p, poem::emu::MemoryOrder::relaxed, site, [v](T old) { return old < v ? old : v; });
}
template <class T> inline T atomicAnd(T* p, T v POEM_SITE) {
  return poem::emu::atomic(p, poem::emu::MemoryOrder::relaxed, site, [v](T old) { return (T)(old & v); });
}
template <class T> inline T atomicOr(T* p, T v POEM_SITE) {
  return poem::emu::atomic(p, poem::emu::MemoryOrder::relaxed, site, [v](T old) { return (T)(old | v); });
}
template <class T> inline T atomicExch(T* p, T v POEM_SITE) {
  return poem::emu::atomic(p, poem::emu::MemoryOrder::relaxed, site, [v](T) { return v; });
}
template <class T> inline T atomicCAS(T* p, T compare, T v POEM_SITE) {
  return poem::emu::atomic(p, poem::emu::MemoryOrder::relaxed, site, [compare, v](T old) { return old == compare ? v : old; });
}

// --------------------------------------------------------------------------------------------------------------- numbers
extern "C" {  // as <math.h> declares them; at most 1 unit in the last place off in glibc, where CUDA's may be 2
float sqrtf(float) noexcept;
float fmaf(float, float, float) noexcept;
float fabsf(float) noexcept;
float fminf(float, float) noexcept;
float fmaxf(float, float) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
float truncf(float) noexcept;
float rintf(float) noexcept;
float roundf(float) noexcept;
long lrintf(float) noexcept;
float copysignf(float, float) noexcept;
float fmodf(float, float) noexcept;
float ldexpf(float, int) noexcept;
float frexpf(float, int*) noexcept;
float expf(float) noexcept;
float exp2f(float) noexcept;
float expm1f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float log1pf(float) noexcept;
float powf(float, float) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
float tanhf(float) noexcept;
float erff(float) noexcept;
double sqrt(double) noexcept;
double fma(double, double, double) noexcept;
double fabs(double) noexcept;
double fmin(double, double) noexcept;
double fmax(double, double) noexcept;
double floor(double) noexcept;
double ceil(double) noexcept;
double rint(double) noexcept;
double exp(double) noexcept;
double log(double) noexcept;
double log1p(double) noexcept;
double pow(double, double) noexcept;
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline int __float2int_rn(float x) { return (int)lrintf(x); }
template <class To, class From> inline To poem_same_bits(From x) {
  To value;
  __builtin_memcpy(&value, &x, sizeof value);
  return value;
}
inline unsigned __float_as_uint(float x) { return poem_same_bits<unsigned>(x); }
inline int __float_as_int(float x) { return poem_same_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return poem_same_bits<float>(x); }
inline float __int_as_float(int x) { return poem_same_bits<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
template <class A, class B> inline auto min(A a, B b) { return b < a ? b : a; }
template <class A, class B> inline auto max(A a, B b) { return a < b ? b : a; }
