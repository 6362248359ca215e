// The wrappers of the prelude one by one: each kernel moves data to an instruction and its results out. What the emulator gives is
// recorded (bench/on_gpu/selftest.py), and a device must give the same. All are templates, so that only those asked for are compiled.
#include "prelude.cuh"
using namespace poem;
#define ME (blockIdx.x * blockDim.x + threadIdx.x)

// ----------------------------------------------------------------------------------------------------------------- numbers
// Every format that x can be rounded to; x and all outputs have n elements, n a multiple of 2.
template <class = void>
__global__ void encode(const float* x, uint16_t* as_bf16, uint16_t* as_f16, uint8_t* as_e4m3, uint8_t* as_e5m2, uint8_t* as_e2m1, int n) {
  for (int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x); i < n; i += 2 * gridDim.x * blockDim.x) {
    const float a = x[i], b = x[i + 1];
    *reinterpret_cast<uint32_t*>(as_bf16 + i) = pack<bf16>(a, b);
    *reinterpret_cast<uint32_t*>(as_f16 + i) = pack<f16>(a, b);
    *reinterpret_cast<uint16_t*>(as_e4m3 + i) = pack_e4m3(a, b);
    *reinterpret_cast<uint16_t*>(as_e5m2 + i) = pack_e5m2(a, b);
    as_e2m1[i / 2] = pack_e2m1(a, b);
  }
}
template <class T> __global__ void encode_one(const float* x, T* codes, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) codes[i] = from_float<T>(x[i]);
}
template <class T> __global__ void decode(const T* codes, float* values, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) values[i] = to_float(codes[i]);
}
// The pairs of 8- and 4-bit codes: values of all 65536 pairs, and of all 256.
template <class = void> __global__ void decode_pairs(float2* of_e4m3, float2* of_e5m2, float2* of_e2m1) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  of_e4m3[i] = unpack_e4m3((uint16_t)i);
  of_e5m2[i] = unpack_e5m2((uint16_t)i);
  if (i < 256) of_e2m1[i] = unpack_e2m1((uint8_t)i);
}
// Four numbers of each thread as codes of activations, scaled by the largest of them.
template <class = void> __global__ void encode_activations(const float* x, float* scales, uint32_t* codes) {
  float v[4];
  uint32_t largest = 0;
  for (int i = 0; i < 4; ++i) {
    v[i] = x[4 * ME + i];
    largest = max(largest, magnitude_bits(v[i]));
  }
  scales[ME] = activation_scale(largest);
  codes[ME] = activation_codes(v, scales[ME]);
}
template <class T> __global__ void decode_halves(const uint32_t* pairs, float2* values) { values[ME] = unpack<T>(pairs[ME]); }
template <class T> __global__ void split_numbers(const float2* x, uint32_t* parts) {
  uint32_t own[2];
  split<T>(own, x[ME].x, x[ME].y);
  for (int part = 0; part < 2; ++part) parts[2 * ME + part] = own[part];
}
template <class = void> __global__ void find_nan(const float* x, int* nan) { nan[ME] = is_nan(x[ME]); }
// Stored codes as pairs of bf16, by a gain and an offset for each thread; parts are what an offset is taken apart into.
template <class F> __global__ void decode_stored(const uint32_t* codes, const typename F::Gain* gain, const typename F::Gain* offset,
                                                 uint32_t* pairs, float2* parts) {
  constexpr int PAIRS = F::WORDS * 16 / F::BITS;
  uint32_t own[F::WORDS], made[PAIRS];
  for (int i = 0; i < F::WORDS; ++i) own[i] = codes[ME * F::WORDS + i];
  const auto factor = F::factor(gain[ME], offset[ME]);
  F::decode(own, factor, made);
  for (int i = 0; i < PAIRS; ++i) pairs[ME * PAIRS + i] = made[i];
  if constexpr (F::HAS_OFFSET) parts[ME] = make_float2(factor.gain, factor.rest);
  else parts[ME] = make_float2(0, 0);
}
template <class = void>
__global__ void approximate(const float* x, float* exp2, float* log2, float* reciprocal, float* rsqrt, float* tanh, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    exp2[i] = exp2_approx(x[i]);
    log2[i] = log2_approx(x[i]);
    reciprocal[i] = reciprocal_approx(x[i]);
    rsqrt[i] = rsqrt_approx(x[i]);
    tanh[i] = tanh_approx(x[i]);
  }
}
template <int TABLE> __global__ void logic(const uint32_t* x, uint32_t* out) {  // x: 3 words for each thread
  const uint32_t* w = x + 3 * threadIdx.x;
  out[2 * threadIdx.x] = lop3<TABLE>(w[0], w[1], w[2]);
  out[2 * threadIdx.x + 1] = permute_bytes(w[0], w[1], w[2]);
}

// ---------------------------------------------------------------------------------------------------- one warp and matrices
// `tile` is 8 N rows of 8 elements; `pitch` bytes from row to row in shared memory.
template <int N, bool TRANSPOSED> __global__ void load_matrices(const uint16_t* tile, uint32_t* registers, int pitch) {
  POEM_DYNAMIC_SHARED(memory);
  for (int i = threadIdx.x; i < 64 * N; i += 32) *reinterpret_cast<uint16_t*>(memory + i / 8 * pitch + i % 8 * 2) = tile[i];
  __syncwarp();
  uint32_t r[N];
  ldmatrix<TRANSPOSED>(r, shared_address(memory) + threadIdx.x % (8 * N) * pitch);
  for (int i = 0; i < N; ++i) registers[threadIdx.x * N + i] = r[i];
}
template <int N, bool TRANSPOSED> __global__ void store_matrices(const uint32_t* registers, uint16_t* tile, int pitch) {
  POEM_DYNAMIC_SHARED(memory);
  uint32_t r[N];
  for (int i = 0; i < N; ++i) r[i] = registers[threadIdx.x * N + i];
  stmatrix<TRANSPOSED>(shared_address(memory) + threadIdx.x % (8 * N) * pitch, r);
  __syncwarp();
  for (int i = threadIdx.x; i < 64 * N; i += 32) tile[i] = *reinterpret_cast<const uint16_t*>(memory + i / 8 * pitch + i % 8 * 2);
}
// d += a b, `times` times; the registers of each lane one after another.
template <class T> __global__ void multiply(const uint32_t* a, const uint32_t* b, float* d, int times) {
  uint32_t ra[4];
  float rd[4];
  for (int i = 0; i < 4; ++i) ra[i] = a[threadIdx.x * 4 + i];
  for (int i = 0; i < 4; ++i) rd[i] = d[threadIdx.x * 4 + i];
  for (int t = 0; t < times; ++t) {
    if constexpr (sizeof(T) == 2) mma_m16n8k16<T>(rd, ra, b[threadIdx.x * 2], b[threadIdx.x * 2 + 1]);
    else mma_m16n8k32<T>(rd, ra, b[threadIdx.x * 2], b[threadIdx.x * 2 + 1]);
  }
  for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = rd[i];
}

// -------------------------------------------------------------------------------------------------------------- warpgroups
// d = a b + d for operands whose images in shared memory are given, `bytes` each, with the offsets of their descriptors.
template <class T, int N, Swizzle SA, Swizzle SB, bool TA, bool TB> __global__ void __launch_bounds__(128)
    multiply_shared(const uint4* a, const uint4* b, float* d, int bytes, int leading_a, int stride_a, int leading_b, int stride_b) {
  POEM_DYNAMIC_SHARED(memory);
  for (int i = threadIdx.x; i < bytes / 16; i += 128) {
    reinterpret_cast<uint4*>(memory)[i] = a[i];
    reinterpret_cast<uint4*>(memory + bytes)[i] = b[i];
  }
  float rd[N / 2];
  for (int i = 0; i < N / 2; ++i) rd[i] = d[threadIdx.x * (N / 2) + i];
  fence_async_proxy();
  __syncthreads();
  const uint32_t base = shared_address(memory);
  wgmma_fence();
  wgmma<T, TA, TB>(rd, matrix_descriptor<SA>(base, leading_a, stride_a), matrix_descriptor<SB>(base + bytes, leading_b, stride_b), true);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < N / 2; ++i) d[threadIdx.x * (N / 2) + i] = rd[i];
}
template <class T, int N, Swizzle SB, bool TB> __global__ void __launch_bounds__(128)
    multiply_registers(const uint32_t* a, const uint4* b, float* d, int bytes, int leading_b, int stride_b) {
  POEM_DYNAMIC_SHARED(memory);
  for (int i = threadIdx.x; i < bytes / 16; i += 128) reinterpret_cast<uint4*>(memory)[i] = b[i];
  uint32_t ra[4];
  for (int i = 0; i < 4; ++i) ra[i] = a[threadIdx.x * 4 + i];
  float rd[N / 2];
  fence_async_proxy();
  __syncthreads();
  wgmma_fence();
  wgmma<T, TB>(rd, ra, matrix_descriptor<SB>(shared_address(memory), leading_b, stride_b), false);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < N / 2; ++i) d[threadIdx.x * (N / 2) + i] = rd[i];
}

// The products of every width that there is, N = 8, 16, ... 256 after each other, each [threads, N / 2]: tiles with rows of 128 bytes.
template <class T, bool FROM_REGISTERS, int N>
POEM_DEVICE void multiply_width(const uint32_t (&a)[4], uint64_t image_a, uint64_t image_b, float* d) {
  float rd[N / 2];
  wgmma_fence();
  if constexpr (FROM_REGISTERS) wgmma<T>(rd, a, image_b, false);
  else wgmma<T>(rd, image_a, image_b, false);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < N / 2; ++i) d[threadIdx.x * (N / 2) + i] = rd[i];
  if constexpr (N < 256) multiply_width<T, FROM_REGISTERS, N + 8>(a, image_a, image_b, d + 64 * N);
}
template <class T, bool FROM_REGISTERS> __global__ void __launch_bounds__(128)
    multiply_widths(const uint4* a, const uint4* b, float* d, int bytes) {
  POEM_DYNAMIC_SHARED(memory);
  for (int i = threadIdx.x; i < bytes / 16; i += 128) {
    reinterpret_cast<uint4*>(memory)[i] = a[i];
    reinterpret_cast<uint4*>(memory + bytes)[i] = b[i];
  }
  const uint4 own = a[threadIdx.x];
  const uint32_t registers[4] = {own.x, own.y, own.z, own.w};
  fence_async_proxy();
  __syncthreads();
  const uint32_t base = shared_address(memory);
  multiply_width<T, FROM_REGISTERS, 8>(registers, row_descriptor<Swizzle::bytes128>(base), row_descriptor<Swizzle::bytes128>(base + bytes),
                                       d);
}

// ------------------------------------------------------------------------------------------------------------- copy engine
// The box at these coordinates, as it lies in shared memory. MULTICAST: to the blocks of the cluster, which are this one.
template <int RANK, bool MULTICAST>
__global__ void load_box(const __grid_constant__ TensorMap map, uint32_t* image, int bytes, int c0, int c1, int c2) {
  POEM_DYNAMIC_SHARED(memory);
  POEM_SHARED(uint64_t, bars, [1]);
  const uint32_t to = shared_address(memory), bar = shared_address(bars);
  if (threadIdx.x == 0) {
    mbarrier_init(bar, 1);
    mbarrier_init_fence();
    tma_prefetch(&map);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(bar, bytes);
    if constexpr (RANK == 2 && MULTICAST) tma_load_multicast(to, &map, bar, 1, c0, c1);
    else if constexpr (RANK == 2) tma_load(to, &map, bar, c0, c1);
    else if constexpr (MULTICAST) tma_load_multicast(to, &map, bar, 1, c0, c1, c2);
    else tma_load(to, &map, bar, c0, c1, c2);
  }
  mbarrier_wait(bar, 0);
  for (int i = threadIdx.x; i < bytes / 4; i += 32) image[i] = reinterpret_cast<const uint32_t*>(memory)[i];
}
template <int RANK>
__global__ void store_box(const __grid_constant__ TensorMap map, const uint32_t* image, int bytes, int c0, int c1, int c2) {
  POEM_DYNAMIC_SHARED(memory);
  for (int i = threadIdx.x; i < bytes / 4; i += 32) reinterpret_cast<uint32_t*>(memory)[i] = image[i];
  fence_async_proxy();
  __syncwarp();
  if (elect_lane()) {
    if constexpr (RANK == 2) tma_store(&map, shared_address(memory), c0, c1);
    else tma_store(&map, shared_address(memory), c0, c1, c2);
    bulk_commit();
    bulk_wait<0>();
  }
}
// An array of 16 rows as a swizzled box, read element by element from where `swizzled` says it lies.
template <Swizzle S> __global__ void read_swizzled(const __grid_constant__ TensorMap map, uint32_t* out, int row_bytes) {
  POEM_DYNAMIC_SHARED(memory);
  POEM_SHARED(uint64_t, bars, [1]);
  const uint32_t bar = shared_address(bars);
  if (threadIdx.x == 0) {
    mbarrier_init(bar, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(bar, 16 * row_bytes);
    tma_load(shared_address(memory), &map, bar, 0, 0);
  }
  mbarrier_wait(bar, 0);
  for (int i = threadIdx.x; i < 4 * row_bytes; i += 32) out[i] = *reinterpret_cast<const uint32_t*>(memory + swizzled<S>(4 * i));
}
#if defined(POEM_EMULATED) || __CUDA_ARCH__ >= 900
// Two blocks load half of the rows each, for both.
template <class = void> __global__ void __cluster_dims__(2, 1, 1)
    share_box(const __grid_constant__ TensorMap map, uint32_t* image, int bytes, int rows) {
  POEM_DYNAMIC_SHARED(memory);
  POEM_SHARED(uint64_t, bars, [1]);
  const uint32_t bar = shared_address(bars), rank = cluster_rank();
  if (threadIdx.x == 0) {
    mbarrier_init(bar, 1);
    mbarrier_init_fence();
  }
  cluster_sync();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(bar, 2 * bytes);
    tma_load_multicast(shared_address(memory) + rank * bytes, &map, bar, 3, 0, rank * rows);
  }
  mbarrier_wait(bar, 0);
  for (int i = threadIdx.x; i < bytes / 2; i += 32) image[blockIdx.x * bytes / 2 + i] = reinterpret_cast<const uint32_t*>(memory)[i];
  cluster_sync();
}
#endif
// 8 pieces of 512 bytes through a ring of two: thread 128 loads, 128 threads take.
template <class = void> __global__ void bulk_ring(const uint32_t* x, uint32_t* out) {
  POEM_SHARED(uint64_t, bars, [4]);
  POEM_SHARED(uint32_t, words, [2 * 128]);
  const int t = threadIdx.x;
  const uint32_t full = shared_address(bars), empty = full + 16;
  if (t == 0) {
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 128);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (t == 128)
    for (int i = 0; i < 8; ++i) {
      const int s = i % 2;
      mbarrier_wait(empty + 8 * s, i / 2 % 2 ^ 1);
      mbarrier_arrive_expect(full + 8 * s, 512);
      bulk_load(shared_address(words + 128 * s), x + 128 * i, 512, full + 8 * s);
    }
  else if (t < 128)
    for (int i = 0; i < 8; ++i) {
      const int s = i % 2;
      mbarrier_wait(full + 8 * s, i / 2 % 2);
      out[128 * i + t] = words[128 * s + (t ^ 37)];
      mbarrier_arrive(empty + 8 * s);
    }
}
template <class = void> __global__ void bulk_out(const uint32_t* x, uint32_t* out) {
  POEM_SHARED(uint32_t, words, [2 * 128]);
  words[threadIdx.x] = x[threadIdx.x];
  words[128 + threadIdx.x] = ~x[threadIdx.x];
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out, shared_address(words), 512);
    bulk_commit();
    bulk_store(out + 128, shared_address(words + 128), 512);
    bulk_commit();
    bulk_wait_read<0>();
    bulk_wait<0>();
  }
}

// ------------------------------------------------------------------------------------------------- global memory, cp.async
template <class V> __global__ void load_words(const V* x, V* out) {
  prefetch_l2(x + ME);
  out[2 * ME] = load_constant(x + ME);
  out[2 * ME + 1] = load_streaming(x + (blockDim.x * gridDim.x - 1 - ME));
}
// `cells` belong to all threads, `own` two to each.
template <class = void> __global__ void atomics(const uint32_t* x, uint32_t* cells, uint32_t* own, uint32_t* before) {
  const uint32_t v = x[ME];
  uint32_t* mine = own + 2 * ME;
  atomicAdd(cells, v);
  atomicMax(cells + 1, v);
  atomicMin(cells + 2, v);
  atomicAnd(cells + 3, v | 0x00ff00ffu);
  atomicOr(cells + 4, v & 0xff00ff00u);
  atomicMax(reinterpret_cast<int*>(cells) + 5, (int)v);
  atomicMin(reinterpret_cast<int*>(cells) + 6, (int)v);
  reduce_add(cells + 7, v);
  atomic_add_acq_rel(cells + 8, v);
  before[4 * ME] = atomicExch(mine, v);
  before[4 * ME + 1] = atomicCAS(mine, v, ~v);
  before[4 * ME + 2] = atomicCAS(mine, v, 5u);
  before[4 * ME + 3] = atomicAdd(mine + 1, v);
}
// The last block to arrive adds up what all wrote.
template <class = void> __global__ void last_block(const uint32_t* x, uint32_t* parts, uint32_t* count, uint32_t* sums) {
  POEM_SHARED(uint32_t, arrived, [1]);
  parts[ME] = 3 * x[ME];
  __syncthreads();
  if (threadIdx.x == 0) arrived[0] = atomic_add_acq_rel(count, 1);
  __syncthreads();
  if (arrived[0] != gridDim.x - 1) return;
  uint32_t sum = 0;
  for (uint32_t b = 0; b < gridDim.x; ++b) sum += parts[b * blockDim.x + threadIdx.x];
  sums[threadIdx.x] = sum;
}
// Two blocks: who sees the other's flag sees what it wrote before. Always 1.
template <class = void> __global__ void published(const uint32_t* x, uint32_t* data, uint32_t* flags, uint32_t* right) {
  POEM_SHARED(uint32_t, seen, [1]);
  data[ME] = x[ME];
  __syncthreads();
  if (threadIdx.x == 0) {
    store_release(flags + blockIdx.x, 1);
    seen[0] = load_acquire(flags + (blockIdx.x ^ 1));
  }
  __syncthreads();
  const uint32_t other = (blockIdx.x ^ 1) * blockDim.x + threadIdx.x;
  right[ME] = seen[0] == 0 || data[other] == x[other];
}
// SIZE bytes for each of 128 threads, of the first copy only bytes[t], the rest zero.
template <int SIZE> __global__ void copy(const uint8_t* x, const int* bytes, uint32_t* out) {
  POEM_SHARED(uint8_t, memory, [2 * 128 * SIZE]);
  const int t = threadIdx.x;
  cp_async<SIZE>(shared_address(memory + t * SIZE), x + t * SIZE, bytes[t]);
  cp_async_commit();
  cp_async<SIZE>(shared_address(memory + (128 + t) * SIZE), x + (127 - t) * SIZE);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  const uint32_t* words = reinterpret_cast<const uint32_t*>(memory);
  for (int i = t; i < 32 * SIZE; i += 128) out[i] = words[i];
  cp_async_wait<0>();
  __syncthreads();
  for (int i = t; i < 32 * SIZE; i += 128) out[32 * SIZE + i] = words[32 * SIZE + i];
}
template <class = void> __global__ void copy_to_mbarrier(const uint32_t* x, uint32_t* out) {
  POEM_SHARED(uint64_t, bars, [1]);
  POEM_SHARED(uint32_t, words, [2 * 128]);
  const int t = threadIdx.x;
  if (t == 0) mbarrier_init(shared_address(bars), 128);
  __syncthreads();
  for (int phase = 0; phase < 2; ++phase) {
    cp_async<4>(shared_address(words + 128 * phase + t), x + 128 * phase + t);
    cp_async_mbarrier_arrive(shared_address(bars));
    mbarrier_wait(shared_address(bars), phase);
    out[128 * phase + t] = words[128 * phase + (t ^ 64)];
  }
}

// ------------------------------------------------------------------------------------------- barriers, warps, clusters, launches
// Two warps hand over to two others, which then wait for each other.
template <class = void> __global__ void named_barriers(const uint32_t* x, uint32_t* out) {
  POEM_SHARED(uint32_t, words, [128]);
  const int t = threadIdx.x;
  if (t < 64) {
    words[t] = x[t];
    barrier_arrive(2, 128);
    out[t] = ~x[t];
  } else {
    barrier_sync(2, 128);
    words[t] = 3 * words[t - 64];
    barrier_sync(15, 64);
    out[t] = words[t ^ 33] + x[t];
  }
}
// 16 words for each of 128 threads. The elected lane may be any, but one and always the same.
template <class = void> __global__ void warp_functions(const uint32_t* x, uint32_t* out) {
  const uint32_t v = x[ME];
  const int lane = threadIdx.x % 32;
  uint32_t* o = out + 16 * ME;
  o[0] = __shfl_sync(~0u, v, v % 32);
  o[1] = __shfl_sync(~0u, v, 5, 8);
  o[2] = __shfl_up_sync(~0u, v, 3);
  o[3] = __shfl_up_sync(~0u, v, 2, 16);
  o[4] = __shfl_down_sync(~0u, v, 7);
  o[5] = __shfl_down_sync(~0u, v, 1, 4);
  o[6] = __shfl_xor_sync(~0u, v, 21);
  o[7] = __float_as_uint(__shfl_xor_sync(~0u, __uint_as_float(v), 16));
  o[8] = (uint32_t)(__shfl_sync(~0u, (unsigned long long)v << 32 | ~v, 31 - lane) >> 16);
  o[9] = __ballot_sync(~0u, v & 1);
  o[10] = __any_sync(~0u, v % 64 == 0) + 2 * __all_sync(~0u, v % 64 != 1);
  o[11] = __syncthreads_count(v & 2);
  o[12] = __syncthreads_or(v % 512 == 0);
  o[13] = __syncthreads_and(v % 512 != 0);
  __syncwarp();
  const uint32_t first = __ballot_sync(~0u, elect_lane()), second = __ballot_sync(~0u, elect_lane());
  o[14] = __popc(first) == 1 && first == second;
  uint32_t half = 0;
  if (lane < 16) half = __ballot_sync(0xffffu, v & 4) + __shfl_sync(0xffffu, v, lane ^ 9);
  o[15] = half;
}
#if defined(POEM_EMULATED) || __CUDA_ARCH__ >= 900
// What a block of the cluster gets from the other one. 4 words for each thread.
template <class = void> __global__ void __cluster_dims__(2, 1, 1) exchange(const uint32_t* x, uint32_t* out) {
  POEM_SHARED(uint64_t, bars, [1]);
  POEM_SHARED(uint32_t, words, [128]);
  const uint32_t bar = shared_address(bars), other = cluster_rank() ^ 1;
  if (threadIdx.x == 0) {
    mbarrier_init(bar, 128);
    mbarrier_init_fence();
  }
  cluster_sync();
  cluster_pointer(words, other)[threadIdx.x] = x[ME];
  mbarrier_arrive_cluster(cluster_address(bar, other));
  mbarrier_wait(bar, 0);
  out[4 * ME] = cluster_rank();
  out[4 * ME + 1] = cluster_size();
  out[4 * ME + 2] = words[threadIdx.x];
  cluster_arrive();
  cluster_wait();
  out[4 * ME + 3] = cluster_pointer(words, other)[threadIdx.x ^ 65];
  cluster_sync();
}
#endif
// Three warpgroups: one gives registers back, two take them.
template <class = void> __global__ void __launch_bounds__(384, 1) register_budgets(const uint32_t* x, uint32_t* out) {
  if (threadIdx.x < 128) release_registers<40>();
  else acquire_registers<232>();
  out[threadIdx.x] = 3 * x[threadIdx.x] + 1;
}
// Launched several times, each overlapping the one before.
template <class = void> __global__ void relay(const uint32_t* x, uint32_t* out) {
  grid_dependency_wait();
  out[ME] = 3 * x[ME] + 1;
  grid_dependency_launch();
}
// How shared memory is laid out: what static and dynamic memory are aligned to.
template <class = void> __global__ void alignment(uint32_t* out) {
  POEM_DYNAMIC_SHARED(memory);
  POEM_SHARED(uint8_t, odd, [33]);
  POEM_SHARED(uint32_t, words, [32]);
  odd[threadIdx.x] = (uint8_t)threadIdx.x;
  words[threadIdx.x] = odd[threadIdx.x];
  memory[threadIdx.x] = (uint8_t)words[threadIdx.x];
  out[3 * threadIdx.x] = shared_address(memory) % 1024;
  out[3 * threadIdx.x + 1] = shared_address(words) % 128;
  out[3 * threadIdx.x + 2] = memory[threadIdx.x];
}

// ------------------------------------------------------------------------------------------------------------- functions
// Those that round correctly or not at all: each result n numbers, one after another.
template <class = void> __global__ void exact_functions(const float* x, const float* y, float* out, int* whole, int n) {
  for (int i = ME; i < n; i += gridDim.x * blockDim.x) {
    const float a = x[i], b = y[i];
    int exponent;
    const float mantissa = frexpf(a, &exponent);
    const float results[] = {
        sqrtf(fabsf(a)), fmaf(a, b, -a), __fmaf_rn(b, b, a), a / b,       __fdiv_rn(b, a), __fadd_rn(a, b),
        __fmul_rn(a, b), fminf(a, b),    fmaxf(a, b),        floorf(a),   ceilf(a),        truncf(a),
        rintf(a),        roundf(a),      copysignf(a, -b),   fmodf(a, b), ldexpf(a, 3),    mantissa,
    };
    constexpr int COUNT = sizeof(results) / sizeof(float);
    for (int k = 0; k < COUNT; ++k) out[k * n + i] = results[k];
    const unsigned bits = __float_as_uint(a), others = __float_as_uint(b);
    const float small = fminf(fmaxf(a, -1e6f), 1e6f);
    const int integers[] = {
        exponent,
        __float2int_rn(small),
        (int)lrintf(small),
        __popc(bits),
        __clz((int)(bits >> 3)),
        __ffs((int)(bits & others)),
        (int)__umulhi(bits, others),
        __float_as_int(__int_as_float((int)others)),
        min((int)bits, (int)others),
        max(bits, others) == bits,
    };
    for (int k = 0; k < (int)(sizeof(integers) / sizeof(int)); ++k) whole[k * n + i] = integers[k];
  }
}
template <class = void> __global__ void exact_doubles(const double* x, const double* y, double* out, int n) {
  for (int i = ME; i < n; i += gridDim.x * blockDim.x) {
    const double a = x[i], b = y[i];
    const double results[] = {sqrt(fabs(a)), fma(a, b, -a), a / b, fmin(a, b), fmax(a, b), floor(a), ceil(a), rint(a)};
    for (int k = 0; k < 8; ++k) out[k * n + i] = results[k];
  }
}
// Those that err by a stated number of units in the last place. x is any number, p a positive one.
template <class = void> __global__ void functions(const float* x, const float* p, float* out, int n) {
  for (int i = ME; i < n; i += gridDim.x * blockDim.x) {
    const float a = x[i], b = p[i];
    const float results[] = {
        expf(a),
        exp2f(a),
        expm1f(a),
        sinf(a),
        cosf(a),
        tanhf(a),
        erff(a),
        logf(b),
        log2f(b),
        log1pf(b),
        powf(b, a),
        rsqrtf(b),
        sigmoid(a),
        activated<SILU>(a),
        activated<GELU_TANH>(a),
        activated<GELU>(a),
    };
    for (int k = 0; k < (int)(sizeof(results) / sizeof(float)); ++k) out[k * n + i] = results[k];
  }
}
template <class = void> __global__ void doubles(const double* x, const double* p, double* out, int n) {
  for (int i = ME; i < n; i += gridDim.x * blockDim.x) {
    const double results[] = {exp(x[i]), log(p[i]), log1p(p[i]), pow(p[i], x[i])};
    for (int k = 0; k < 4; ++k) out[k * n + i] = results[k];
  }
}
