// Matrix products of one warp: D[16, 8] += A[16, K] B[8, K]^T in float32.
//
// Lane l holds, with g = l / 4 and q = l % 4, and E elements to a register (2 of 16 bits, 4 of 8 bits):
//   a[i]   row g + 8 (i % 2),  elements E q ... of the half i / 2 of K
//   b[i]   row g of B,         elements E q ... of the half i of K
//   d[i]   row g + 8 (i / 2),  column 2 q + i % 2
#pragma once

namespace poem {

#define POEM_MMA(INSTRUCTION)                                                                 \
  asm volatile(INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// T is bf16 or f16, with K = 16.
template <class T> POEM_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 POEM_SITE) {
  static_assert(same_type<T, bf16> || same_type<T, f16>, "16-bit products are of bf16 or f16");
#ifdef POEM_EMULATED
  emu::mma(d, a, b0, b1, same_type<T, bf16> ? emu::Format::bf16 : emu::Format::f16, site);
#else
  if constexpr (same_type<T, bf16>) POEM_MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
  else POEM_MMA("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
#endif
}
// T is e4m3 or e5m2, with K = 32 (sm_89). The tensor core keeps 13 bits below the largest term of a product: see docs/emulator.md.
template <class T> POEM_DEVICE void mma_m16n8k32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 POEM_SITE) {
  static_assert(same_type<T, e4m3> || same_type<T, e5m2>, "8-bit products are of e4m3 or e5m2");
#ifdef POEM_EMULATED
  emu::mma(d, a, b0, b1, same_type<T, e4m3> ? emu::Format::e4m3 : emu::Format::e5m2, site);
#else
  if constexpr (same_type<T, e4m3>) POEM_MMA("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32");
  else POEM_MMA("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32");
#endif
}
#undef POEM_MMA

}  // namespace poem
