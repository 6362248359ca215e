// C[M, N] (float) = A[M, K] B[N, K]^T, bf16: a ring of cp.async tiles, ldmatrix, mma.sync. For tests of the emulator.
#include "prelude.cuh"
using namespace poem;

// Where 16-byte chunk `chunk` of a row of a tile lies: XOR swizzled, so that ldmatrix has no bank conflicts.
template <int BK> POEM_DEVICE uint32_t place(int row, int chunk) {
  constexpr int CHUNKS = BK / 8, SHIFT = CHUNKS == 4 ? 1 : 0;  // rows of 64 bytes: two share a bank line
  return (row * CHUNKS + (chunk ^ (row >> SHIFT & (CHUNKS - 1)))) * 16;
}

template <int BM, int BN, int BK, int STAGES, int WARPS_M, int WARPS_N> __global__ void __launch_bounds__(WARPS_M * WARPS_N * 32)
    mma_gemm(const bf16* __restrict__ A, const bf16* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
  constexpr int T = WARPS_M * WARPS_N * 32, CHUNKS = BK / 8, WM = BM / WARPS_M, WN = BN / WARPS_N, MT = WM / 16, NT = WN / 8;
  constexpr int A_BYTES = BM * BK * 2, STAGE = A_BYTES + BN * BK * 2;
  static_assert(NT % 2 == 0 && BK % 16 == 0, "tile shape");
  POEM_DYNAMIC_SHARED(memory);
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  const int wm = warp % WARPS_M * WM, wn = warp / WARPS_M * WN;
  const uint32_t base = shared_address(memory);
  const int tiles = (K + BK - 1) / BK;

  auto load_tile = [&](const bf16* from, int first, int rows, uint32_t to, int kt) {
    for (int i = t; i < rows * CHUNKS; i += T) {
      const int r = i / CHUNKS, c = i % CHUNKS, k = kt * BK + c * 8;
      const int limit = from == A ? M : N;
      const bool inside = first + r < limit && k < K;
      cp_async(to + place<BK>(r, c), from + (inside ? (size_t)(first + r) * K + k : 0), inside ? 16 : 0);
    }
  };
  auto load_stage = [&](int kt) {
    const uint32_t stage = base + kt % STAGES * STAGE;
    load_tile(A, m0, BM, stage, kt);
    load_tile(B, n0, BN, stage + A_BYTES, kt);
  };

  float acc[MT][NT][4] = {};
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < tiles) load_stage(s);
    cp_async_commit();
  }
  for (int kt = 0; kt < tiles; ++kt) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const uint32_t sa = base + kt % STAGES * STAGE, sb = sa + A_BYTES;
#pragma unroll
    for (int kk = 0; kk < BK / 16; ++kk) {
      uint32_t a[MT][4], b[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; ++i) ldmatrix(a[i], sa + place<BK>(wm + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < NT / 2; ++j) ldmatrix(b[j], sb + place<BK>(wn + j * 16 + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j) mma_m16n8k16<bf16>(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
    if (kt + STAGES - 1 < tiles) load_stage(kt + STAGES - 1);
    cp_async_commit();
  }
#pragma unroll
  for (int i = 0; i < MT; ++i)
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int m = m0 + wm + i * 16 + lane / 4 + e / 2 * 8, n = n0 + wn + j * 8 + lane % 4 * 2 + e % 2;
        if (m < M && n < N) C[(size_t)m * N + n] = acc[i][j][e];
      }
}
