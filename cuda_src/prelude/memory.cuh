// Loads, stores, asynchronous copies of 4 to 16 bytes (cp.async, sm_80), matrix loads and stores, atomics with an order.
#pragma once

namespace poem {

// The address of shared memory as the instructions below take it.
POEM_DEVICE uint32_t shared_address(const void* p) {
  POEM_TWIN(return emu::shared_address(p), return (uint32_t)__cvta_generic_to_shared(p));
}

// ------------------------------------------------------------------------------------------------------------- global
// Loads past the coherent path, for memory that no thread writes during the launch. `load_streaming` leaves the first-level cache alone:
// for weights and activations read once. V is a type of 4, 8 or 16 bytes, such as Pack<bf16, 8>.
template <class V> POEM_DEVICE V load_constant(const V* p POEM_SITE) {
#ifdef POEM_EMULATED
  return emu::load_constant(p, site);
#else
  union {
    uint32_t words[sizeof(V) / 4];
    V value;
  } c;
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16, "a load moves 4, 8 or 16 bytes");
  if constexpr (sizeof(V) == 4) asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(c.words[0]) : "l"(p));
  else if constexpr (sizeof(V) == 8) asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(c.words[0]), "=r"(c.words[1]) : "l"(p));
  else
    asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(c.words[0]), "=r"(c.words[1]), "=r"(c.words[2]), "=r"(c.words[3])
                 : "l"(p));
  return c.value;
#endif
}
template <class V> POEM_DEVICE V load_streaming(const V* p POEM_SITE) {
#ifdef POEM_EMULATED
  return emu::load_constant(p, site);
#else
  union {
    uint32_t words[sizeof(V) / 4];
    V value;
  } c;
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16, "a load moves 4, 8 or 16 bytes");
  if constexpr (sizeof(V) == 4) asm volatile("ld.global.nc.L1::no_allocate.b32 %0, [%1];" : "=r"(c.words[0]) : "l"(p));
  else if constexpr (sizeof(V) == 8)
    asm volatile("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(c.words[0]), "=r"(c.words[1]) : "l"(p));
  else
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(c.words[0]), "=r"(c.words[1]), "=r"(c.words[2]), "=r"(c.words[3])
                 : "l"(p));
  return c.value;
#endif
}
POEM_DEVICE void prefetch_l2(const void* p) { POEM_TWIN((void)p, asm volatile("prefetch.global.L2 [%0];" ::"l"(p))); }

// Integer atomics that also order the caller's other accesses, for protocols between blocks. (atomicAdd and its kin do not.)
POEM_DEVICE uint32_t atomic_add_acq_rel(uint32_t* p, uint32_t value POEM_SITE) {
  uint32_t before;
  POEM_TWIN(before = emu::atomic_add_acq_rel(p, value, site),
            asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(value) : "memory"));
  return before;
}
POEM_DEVICE void reduce_add(uint32_t* p, uint32_t value POEM_SITE) {
  POEM_TWIN(emu::atomic_add(p, value, site), asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory"));
}
POEM_DEVICE uint32_t load_acquire(const uint32_t* p POEM_SITE) {
  uint32_t value;
  POEM_TWIN(value = emu::load_acquire(p, site), asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory"));
  return value;
}
POEM_DEVICE void store_release(uint32_t* p, uint32_t value POEM_SITE) {
  POEM_TWIN(emu::store_release(p, value, site), asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory"));
}

// ---------------------------------------------------------------------------------------------------- cp.async (sm_80)
// Copies the first `bytes` of SIZE (4, 8 or 16) bytes from global to shared memory and zeroes the rest; with bytes = 0 nothing is read,
// but `source` must still be aligned. Visible to this thread after cp_async_wait, to others after a barrier behind that.
template <int SIZE = 16> POEM_DEVICE void cp_async(uint32_t target, const void* source, uint32_t bytes = SIZE POEM_SITE) {
  static_assert(SIZE == 4 || SIZE == 8 || SIZE == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef POEM_EMULATED
  emu::cp_async(target, source, SIZE, bytes, site);
#else
  if constexpr (SIZE == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(SIZE), "r"(bytes) : "memory");
#endif
}
POEM_DEVICE void cp_async_commit() { POEM_TWIN(emu::cp_async_commit(), asm volatile("cp.async.commit_group;" :: : "memory")); }
// Waits until at most N of this thread's committed groups are under way.
template <int N> POEM_DEVICE void cp_async_wait() {
  POEM_TWIN(emu::cp_async_wait(N), asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"));
}

// ---------------------------------------------------------------------------------------- ldmatrix, stmatrix (8 x 8 of 16 bits)
// Each of the first 8N lanes names a row of 16 bytes, lane 8m + i row i of matrix m; afterwards register m of lane l holds elements
// 2(l % 4) and 2(l % 4) + 1 of row l / 4, or of column l / 4 if TRANSPOSED. All lanes need addresses that are valid.
template <bool TRANSPOSED = false> POEM_DEVICE void ldmatrix(uint32_t (&r)[1], uint32_t row POEM_SITE) {
#ifdef POEM_EMULATED
  emu::ldmatrix(r, 1, TRANSPOSED, row, site);
#else
  if constexpr (TRANSPOSED) asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row) : "memory");
  else asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row) : "memory");
#endif
}
template <bool TRANSPOSED = false> POEM_DEVICE void ldmatrix(uint32_t (&r)[2], uint32_t row POEM_SITE) {
#ifdef POEM_EMULATED
  emu::ldmatrix(r, 2, TRANSPOSED, row, site);
#else
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");
  else asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");
#endif
}
template <bool TRANSPOSED = false> POEM_DEVICE void ldmatrix(uint32_t (&r)[4], uint32_t row POEM_SITE) {
#ifdef POEM_EMULATED
  emu::ldmatrix(r, 4, TRANSPOSED, row, site);
#else
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
#endif
}
// The reverse of ldmatrix (sm_90).
template <bool TRANSPOSED = false> POEM_DEVICE void stmatrix(uint32_t row, const uint32_t (&r)[2] POEM_SITE) {
#ifdef POEM_EMULATED
  emu::stmatrix(r, 2, TRANSPOSED, row, site);
#else
  if constexpr (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(r[0]), "r"(r[1]) : "memory");
  else asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(r[0]), "r"(r[1]) : "memory");
#endif
}
template <bool TRANSPOSED = false> POEM_DEVICE void stmatrix(uint32_t row, const uint32_t (&r)[4] POEM_SITE) {
#ifdef POEM_EMULATED
  emu::stmatrix(r, 4, TRANSPOSED, row, site);
#else
  if constexpr (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]),
                 "r"(r[3])
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
#endif
}

// Makes this thread's writes to shared memory, and those it has been told of, visible to TMA and wgmma.
POEM_DEVICE void fence_async_proxy() { POEM_TWIN(emu::fence_async_proxy(), asm volatile("fence.proxy.async.shared::cta;" :: : "memory")); }

// ------------------------------------------------------------------------------------------------ dependent launches (sm_90)
// A launch marked `overlaps` starts while its predecessor runs: nothing that a predecessor writes may be touched before the wait.
POEM_DEVICE void grid_dependency_wait() { POEM_TWIN(emu::grid_dependency_wait(), asm volatile("griddepcontrol.wait;" :: : "memory")); }
POEM_DEVICE void grid_dependency_launch() { POEM_TWIN((void)0, asm volatile("griddepcontrol.launch_dependents;")); }

}  // namespace poem
