// C[M, N] (float) = A[M, K] B[N, K]^T, bf16, tiles of 64 x 64: one warpgroup, cp.async into the 128-byte swizzle, wgmma. For tests of the
// emulator.
#include "prelude.cuh"
using namespace poem;

template <int STAGES> __global__ void __launch_bounds__(128)
    wgmma_gemm(const bf16* __restrict__ A, const bf16* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
  constexpr int TILE = 64 * 128, STAGE = 2 * TILE;
  POEM_DYNAMIC_SHARED(memory);
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const int m0 = blockIdx.y * 64, n0 = blockIdx.x * 64, tiles = K / 64;
  const uint32_t base = shared_address(memory);
  auto load_stage = [&](int kt) {
    const uint32_t stage = base + kt % STAGES * STAGE;
    for (int i = t; i < 64 * 8; i += 128) {
      const int r = i / 8, c = i % 8;
      const uint32_t at = swizzled<Swizzle::bytes128>(r * 128 + c * 16);
      cp_async(stage + at, A + (m0 + r < M ? (size_t)(m0 + r) * K + kt * 64 + c * 8 : 0), m0 + r < M ? 16 : 0);
      cp_async(stage + TILE + at, B + (n0 + r < N ? (size_t)(n0 + r) * K + kt * 64 + c * 8 : 0), n0 + r < N ? 16 : 0);
    }
  };
  float acc[32] = {};
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < tiles) load_stage(s);
    cp_async_commit();
  }
  for (int kt = 0; kt < tiles; ++kt) {
    cp_async_wait<STAGES - 2>();
    fence_async_proxy();
    __syncthreads();
    const uint32_t sa = base + kt % STAGES * STAGE;
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk)
      wgmma<bf16>(acc, row_descriptor<Swizzle::bytes128>(sa + kk * 32), row_descriptor<Swizzle::bytes128>(sa + TILE + kk * 32), true);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();
    if (kt + STAGES - 1 < tiles) load_stage(kt + STAGES - 1);
    cp_async_commit();
  }
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int m = m0 + warp * 16 + lane / 4 + e / 2 * 8, n = n0 + j * 8 + lane % 4 * 2 + e % 2;
      if (m < M && n < N) C[(size_t)m * N + n] = acc[j * 4 + e];
    }
}
