// Barriers: named ones, mbarriers (sm_90), clusters of blocks (sm_90), and the register budget of a warpgroup (sm_90a).
#pragma once

namespace poem {

// ------------------------------------------------------------------------------------------------------ named barriers
// Barriers 1 to 15 of a block, for `threads` of its threads, whole warps; barrier 0 is __syncthreads.
POEM_DEVICE void barrier_sync(int id, int threads POEM_SITE) {
  POEM_TWIN(emu::barrier_sync(id, threads, site), asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"));
}
// Counts as one of the `threads` without waiting for the others.
POEM_DEVICE void barrier_arrive(int id, int threads POEM_SITE) {
  POEM_TWIN(emu::barrier_arrive(id, threads, site), asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"));
}

// ----------------------------------------------------------------------------------------------------------- mbarriers
// 8 bytes of shared memory. A phase ends when `count` arrivals are in and all bytes that arrivals announced have been copied.
POEM_DEVICE void mbarrier_init(uint32_t bar, uint32_t count POEM_SITE) {
  POEM_TWIN(emu::mbarrier_init(bar, count, site),
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"));
}
// By the initialising thread, before the barrier after which others and TMA use the mbarriers.
POEM_DEVICE void mbarrier_init_fence() {
  POEM_TWIN(emu::mbarrier_init_fence(), asm volatile("fence.mbarrier_init.release.cluster;" :: : "memory"));
}
POEM_DEVICE void mbarrier_arrive(uint32_t bar POEM_SITE) {
  POEM_TWIN(emu::mbarrier_arrive(bar, 0, site), asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"));
}
// Arrives and announces `bytes` that copies will bring in this phase.
POEM_DEVICE void mbarrier_arrive_expect(uint32_t bar, uint32_t bytes POEM_SITE) {
  POEM_TWIN(emu::mbarrier_arrive(bar, bytes, site),
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"));
}
// Waits for the end of the phase of this parity: 0 for the first one, 1 for the second, and so on.
POEM_DEVICE void mbarrier_wait(uint32_t bar, uint32_t parity POEM_SITE) {
  POEM_TWIN(
      emu::mbarrier_wait(bar, parity, site),
      asm volatile(
          "{ .reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(bar),
          "r"(parity) : "memory"));
}
// An arrival that happens once the cp.async copies that this thread has issued so far have landed; it counts among the `count`.
POEM_DEVICE void cp_async_mbarrier_arrive(uint32_t bar POEM_SITE) {
  POEM_TWIN(emu::cp_async_mbarrier_arrive(bar, site),
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory"));
}

// ------------------------------------------------------------------------------------------------------------ clusters
// Blocks that run together and may use each other's shared memory. The kernel says how many: __cluster_dims__(2, 1, 1).
POEM_DEVICE uint32_t cluster_rank() {
  uint32_t r;
  POEM_TWIN(r = emu::cluster_rank(), asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)));
  return r;
}
POEM_DEVICE uint32_t cluster_size() {
  uint32_t r;
  POEM_TWIN(r = emu::cluster_size(), asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(r)));
  return r;
}
// A barrier of all threads of the cluster, in two halves or at once. A block must not exit while others may touch its shared memory.
POEM_DEVICE void cluster_arrive(POEM_SITE_ONLY) {
  POEM_TWIN(emu::cluster_arrive(site), asm volatile("barrier.cluster.arrive.release.aligned;" :: : "memory"));
}
POEM_DEVICE void cluster_wait(POEM_SITE_ONLY) {
  POEM_TWIN(emu::cluster_wait(site), asm volatile("barrier.cluster.wait.acquire.aligned;" :: : "memory"));
}
POEM_DEVICE void cluster_sync(POEM_SITE_ONLY) {
#ifdef POEM_EMULATED
  emu::cluster_arrive(site);
  emu::cluster_wait(site);
#else
  cluster_arrive();
  cluster_wait();
#endif
}
// Shared memory of block `rank` of the cluster that stands where `p` (or `address`) stands in this block's.
template <class T> POEM_DEVICE T* cluster_pointer(T* p, uint32_t rank) {
  T* r;
  POEM_TWIN(r = static_cast<T*>(emu::cluster_pointer(p, rank)), asm volatile("mapa.u64 %0, %1, %2;" : "=l"(r) : "l"(p), "r"(rank)));
  return r;
}
POEM_DEVICE uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t r;
  POEM_TWIN(r = emu::cluster_address(address, rank),
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank)));
  return r;
}
// Arrives at an mbarrier of any block of the cluster; `bar` comes from cluster_address.
POEM_DEVICE void mbarrier_arrive_cluster(uint32_t bar POEM_SITE) {
  POEM_TWIN(emu::mbarrier_arrive(bar, 0, site),
            asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory"));
}

// ----------------------------------------------------------------------------------------------------------- registers
// Gives back, or waits for and takes, registers: N for each thread of this warpgroup, 24 to 256, a multiple of 8. All four warps call it.
template <int N> POEM_DEVICE void release_registers(POEM_SITE_ONLY) {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "setmaxnreg takes a multiple of 8 from 24 to 256");
  POEM_TWIN(emu::set_registers(N, site), asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)));
}
template <int N> POEM_DEVICE void acquire_registers(POEM_SITE_ONLY) {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "setmaxnreg takes a multiple of 8 from 24 to 256");
  POEM_TWIN(emu::set_registers(N, site), asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)));
}

}  // namespace poem
