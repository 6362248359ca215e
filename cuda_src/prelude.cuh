// prelude.cuh: all that a kernel includes.
//
// One source serves two compilers. NVRTC sees the device half of every wrapper, which is one PTX instruction; g++ sees the
// other half, a call of the emulator (emu/), and both are written side by side:
//
//     POEM_TWIN(emu::cp_async_commit(), asm volatile("cp.async.commit_group;" ::: "memory"));
//
// Inline PTX occurs only in this folder, and no CUDA header is included, so that no toolkit is needed to compile a kernel.
//
// Rules for kernels:
//   * shared memory is declared with POEM_SHARED(T, name, [n]) and POEM_DYNAMIC_SHARED(name), never with __shared__;
//   * threads wait for each other only through the wrappers and built-ins: a loop that spins on memory never ends in the emulator;
//   * a block has a whole number of warps; __syncthreads is reached by all of its threads, at one place in the text;
//   * no floating-point atomics: their result depends on the order of arrival;
//   * plain C++17: no exceptions, no standard library, no memcpy on global or shared memory.
#pragma once

#ifdef POEM_EMULATED
#include "emu/emu.h"
#define POEM_TWIN(host, ...) host
#else
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define POEM_DEVICE __device__ __forceinline__
#define POEM_TWIN(host, ...) __VA_ARGS__
// Where a call stands, for the emulator's reports: the last parameter of a wrapper.
#define POEM_SITE
#define POEM_SITE_ONLY
#define POEM_SHARED(T, name, dims) __shared__ __align__(128) T name dims
#define POEM_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]
#endif

#include "prelude/numbers.cuh"
#include "prelude/functions.cuh"
#include "prelude/activations.cuh"
#include "prelude/memory.cuh"
#include "prelude/mma.cuh"
#include "prelude/packed.cuh"
#include "prelude/barriers.cuh"
#include "prelude/tma.cuh"
#include "prelude/wgmma.cuh"
