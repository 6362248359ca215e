// D[M, N] (bf16) = A[M, K] B[N, K]^T, tiles of 128 x 128 x 128 bytes: a producer warpgroup feeds a ring by TMA, two consumer warpgroups
// multiply by wgmma and store by TMA. With CLUSTER = 2, two blocks above each other share the tiles of B by multicast. T is bf16 or e4m3;
// sums of e4m3 products are promoted to float32 after every tile. For tests of the emulator.
#include "prelude.cuh"
using namespace poem;

template <class T, int STAGES, int CLUSTER> __global__ void __cluster_dims__(1, CLUSTER, 1) __launch_bounds__(384, 1)
    pipelined_gemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap D, int K) {
  constexpr int BM = 128, BN = 128, BK = 128 / sizeof(T), A_BYTES = BM * 128, B_BYTES = BN * 128, STAGE = A_BYTES + B_BYTES;
  constexpr int SHARE = BN / CLUSTER;  // rows of B that this block loads for all
  POEM_DYNAMIC_SHARED(memory);
  POEM_SHARED(uint64_t, bars, [2 * STAGES]);
  const int t = threadIdx.x, group = t / 128, tiles = (K + BK - 1) / BK;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  const uint32_t base = shared_address(memory), full = shared_address(bars), empty = full + 8 * STAGES, rank = cluster_rank();
  if (t == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 2 * CLUSTER);
    }
    mbarrier_init_fence();
  }
  if (CLUSTER > 1) cluster_sync();
  else __syncthreads();
  if (group == 0) {
    release_registers<40>();
    if (t == 0)
      for (int kt = 0; kt < tiles; ++kt) {
        const int s = kt % STAGES;
        const uint32_t bar = full + 8 * s, stage = base + s * STAGE;
        mbarrier_wait(empty + 8 * s, kt / STAGES % 2 ^ 1);
        mbarrier_arrive_expect(bar, STAGE);
        tma_load(stage, &A, bar, kt * BK, m0);
        if (CLUSTER == 1) tma_load(stage + A_BYTES, &B, bar, kt * BK, n0);
        else tma_load_multicast(stage + A_BYTES + rank * SHARE * 128, &B, bar, (1 << CLUSTER) - 1, kt * BK, n0 + rank * SHARE);
      }
  } else {
    acquire_registers<232>();
    const int half = group - 1, own = t % 128, lane = t % 32, warp = own / 32;
    float acc[64] = {}, tile_acc[64] = {};
    for (int kt = 0; kt < tiles; ++kt) {
      const int s = kt % STAGES;
      mbarrier_wait(full + 8 * s, kt / STAGES % 2);
      const uint32_t sa = base + s * STAGE + half * 64 * 128, sb = base + s * STAGE + A_BYTES;
      float (&sum)[64] = sizeof(T) == 1 ? tile_acc : acc;
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; ++kk)
        wgmma<T>(sum, row_descriptor<Swizzle::bytes128>(sa + kk * 32), row_descriptor<Swizzle::bytes128>(sb + kk * 32),
                 sizeof(T) == 2 || kk > 0);
      wgmma_commit();
      wgmma_wait<0>();
      if (own < CLUSTER) mbarrier_arrive_cluster(cluster_address(empty + 8 * s, own));
      if (sizeof(T) == 1)
#pragma unroll
        for (int i = 0; i < 64; ++i) acc[i] += tile_acc[i];
    }
    // The ring is free: this warpgroup's last products, which read both halves of it, are not the other's.
    barrier_sync(1, 256);
    const uint32_t staging = base + half * 64 * 256;  // two tiles of 64 x 64 bf16
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp * 16 + lane / 4 + h * 8;
        const uint32_t at = j / 8 * 8192 + swizzled<Swizzle::bytes128>(row * 128 + j % 8 * 16 + lane % 4 * 4);
        *reinterpret_cast<uint32_t*>(memory + (staging - base) + at) = pack<bf16>(acc[j * 4 + h * 2], acc[j * 4 + h * 2 + 1]);
      }
    fence_async_proxy();
    barrier_sync(2 + half, 128);
    if (own == 0) {
      for (int c = 0; c < 2; ++c) tma_store(&D, staging + c * 8192, n0 + c * 64, m0 + half * 64);
      bulk_commit();
      bulk_wait_read<0>();
    }
  }
  if (CLUSTER > 1) cluster_sync();  // the other block may still write into this one's shared memory
}
