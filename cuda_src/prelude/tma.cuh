// Bulk copies by the copy engine (TMA, sm_90). One thread issues them.
//
// A load signals an mbarrier with the bytes it brought; who waits for that mbarrier sees them. A store belongs to a group of the issuing
// thread: fence_async_proxy after writing shared memory, a barrier, then one thread issues, commits and waits.
// A TensorMap is a kernel parameter declared `const __grid_constant__ TensorMap name`. Coordinates count elements, fastest axis first;
// what lies outside the tensor is loaded as zero and not stored. Shared memory is aligned to the swizzle's pattern
// (1024, 512, 256 or 128 bytes for 128-, 64-, 32-byte and no swizzle).
#pragma once

namespace poem {

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

POEM_DEVICE void tma_prefetch(const TensorMap* map) {
  POEM_TWIN((void)map, asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"));
}

#define POEM_TMA "shared::cluster.global.mbarrier::complete_tx::bytes"
POEM_DEVICE void tma_load(uint32_t target, const TensorMap* map, uint32_t bar, int c0, int c1 POEM_SITE) {
  POEM_TWIN(emu::tma_load(target, map, bar, {c0, c1}, 0, site),
            asm volatile("cp.async.bulk.tensor.2d." POEM_TMA " [%0], [%1, {%3, %4}], [%2];" ::"r"(target), "l"(map), "r"(bar), "r"(c0),
                         "r"(c1) : "memory"));
}
POEM_DEVICE void tma_load(uint32_t target, const TensorMap* map, uint32_t bar, int c0, int c1, int c2 POEM_SITE) {
  POEM_TWIN(emu::tma_load(target, map, bar, {c0, c1, c2}, 0, site),
            asm volatile("cp.async.bulk.tensor.3d." POEM_TMA " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(target), "l"(map), "r"(bar), "r"(c0),
                         "r"(c1), "r"(c2) : "memory"));
}
// Into every block of the cluster whose bit is set in `blocks`, at the same place, signalling each one's mbarrier at the same place.
POEM_DEVICE void tma_load_multicast(uint32_t target, const TensorMap* map, uint32_t bar, uint16_t blocks, int c0, int c1 POEM_SITE) {
  POEM_TWIN(emu::tma_load(target, map, bar, {c0, c1}, blocks, site),
            asm volatile("cp.async.bulk.tensor.2d." POEM_TMA ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(target), "l"(map),
                         "r"(bar), "h"(blocks), "r"(c0), "r"(c1) : "memory"));
}
POEM_DEVICE void tma_load_multicast(uint32_t target, const TensorMap* map, uint32_t bar, uint16_t blocks, int c0, int c1,
                                    int c2 POEM_SITE) {
  POEM_TWIN(emu::tma_load(target, map, bar, {c0, c1, c2}, blocks, site),
            asm volatile("cp.async.bulk.tensor.3d." POEM_TMA ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(target),
                         "l"(map), "r"(bar), "h"(blocks), "r"(c0), "r"(c1), "r"(c2) : "memory"));
}
// Consecutive bytes; both addresses and the size are multiples of 16.
POEM_DEVICE void bulk_load(uint32_t target, const void* source, uint32_t bytes, uint32_t bar POEM_SITE) {
  POEM_TWIN(emu::bulk_load(target, source, bytes, bar, site),
            asm volatile("cp.async.bulk." POEM_TMA " [%0], [%1], %2, [%3];" ::"r"(target), "l"(source), "r"(bytes), "r"(bar) : "memory"));
}
#undef POEM_TMA

POEM_DEVICE void tma_store(const TensorMap* map, uint32_t source, int c0, int c1 POEM_SITE) {
  POEM_TWIN(emu::tma_store(map, source, {c0, c1}, site),
            asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(source), "r"(c0),
                         "r"(c1) : "memory"));
}
POEM_DEVICE void tma_store(const TensorMap* map, uint32_t source, int c0, int c1, int c2 POEM_SITE) {
  POEM_TWIN(emu::tma_store(map, source, {c0, c1, c2}, site),
            asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(source), "r"(c0),
                         "r"(c1), "r"(c2) : "memory"));
}
POEM_DEVICE void bulk_store(void* target, uint32_t source, uint32_t bytes POEM_SITE) {
  POEM_TWIN(emu::bulk_store(target, source, bytes, site),
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(source), "r"(bytes) : "memory"));
}
POEM_DEVICE void bulk_commit() { POEM_TWIN(emu::bulk_commit(), asm volatile("cp.async.bulk.commit_group;" :: : "memory")); }
// Waits until at most N of this thread's groups still have shared memory to read. None may when a block exits.
template <int N> POEM_DEVICE void bulk_wait_read() {
  POEM_TWIN(emu::bulk_wait(N), asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"));
}
// Waits until at most N of this thread's groups have not reached global memory.
template <int N> POEM_DEVICE void bulk_wait() {
  POEM_TWIN(emu::bulk_wait(N), asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"));
}

}  // namespace poem
