// The wrappers of the prelude one by one: each kernel moves data to an instruction and its results out.
#include "prelude.cuh"
using namespace poem;

// ----------------------------------------------------------------------------------------------------------------- numbers
// Every format that x can be rounded to; x and all outputs have n elements, n a multiple of 2.
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
__global__ void decode_pairs(float2* of_e4m3, float2* of_e5m2, float2* of_e2m1) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  of_e4m3[i] = unpack_e4m3((uint16_t)i);
  of_e5m2[i] = unpack_e5m2((uint16_t)i);
  if (i < 256) of_e2m1[i] = unpack_e2m1((uint8_t)i);
}
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
