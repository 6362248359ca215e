// Matrix products of a warpgroup (sm_90a): D[64, N] = A[64, K] B[N, K]^T (+ D) in float32, N = 8, 16, ... 256, K = 16 for elements of
// 16 bits and 32 for e4m3. B lies in shared memory, A there or in registers.
//
// Thread t of the warpgroup holds, with w = t / 32, g = t % 32 / 4 and q = t % 4: d[4 j + i] at row 16 w + g + 8 (i / 2), column
// 8 j + 2 q + i % 2; and of an A in registers what it would hold for rows 16 w ... 16 w + 15 in mma.cuh.
//
// The order of calls: wgmma_fence (again whenever registers of A or D were touched), products, wgmma_commit, wgmma_wait; D must not be
// touched in between. Shared memory that threads wrote needs fence_async_proxy and a barrier first; TMA brings its own order.
#pragma once

namespace poem {

// The patterns of shared memory, with the numbers of the matrix descriptor. A tile's rows are 128, 64, 32 or 16 bytes, and within
// a pattern of 8 rows chunks of 16 bytes are exchanged.
enum class Swizzle { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };

// Where the byte at `offset` of a tile lies, for a tile that starts at a multiple of the pattern.
template <Swizzle S> POEM_DEVICE constexpr uint32_t swizzled(uint32_t offset) {
  constexpr uint32_t MASK = S == Swizzle::bytes128 ? 7 : S == Swizzle::bytes64 ? 3 : S == Swizzle::bytes32 ? 1 : 0;
  return offset ^ (offset >> 7 & MASK) << 4;
}

// `stride` and `leading` are bytes, multiples of 16. For an operand whose rows run along K:
//   swizzled      groups of 8 rows lie `stride` apart; `leading` is not used
//   none          8 rows of 16 bytes are contiguous; such blocks lie `leading` apart along K and `stride` apart along the rows
// and for one whose rows run along M or N (16-bit elements only, TRANSPOSED):
//   swizzled      8 rows of K make a block; blocks lie `leading` apart along M or N and `stride` apart along K
//   none          8 rows of K, 16 bytes each, are contiguous; such blocks lie `stride` apart along M or N and `leading` apart along K
template <Swizzle S> POEM_DEVICE uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(leading >> 4 & 0x3fff) << 16 | (uint64_t)(stride >> 4 & 0x3fff) << 32 |
         (uint64_t)S << 62;
}
// A tile as TMA loads it with the same swizzle: rows of 128, 64 or 32 bytes along K, one after the other. The next products along K start
// 32 bytes further.
template <Swizzle S> POEM_DEVICE uint64_t row_descriptor(uint32_t address) {
  static_assert(S != Swizzle::none, "a tile without swizzle needs matrix_descriptor");
  return matrix_descriptor<S>(address, 16, S == Swizzle::bytes128 ? 1024 : S == Swizzle::bytes64 ? 512 : 256);
}

POEM_DEVICE void wgmma_fence() { POEM_TWIN(emu::wgmma_fence(), asm volatile("wgmma.fence.sync.aligned;" :: : "memory")); }
POEM_DEVICE void wgmma_commit(POEM_SITE_ONLY) {
  POEM_TWIN(emu::wgmma_commit(site), asm volatile("wgmma.commit_group.sync.aligned;" :: : "memory"));
}
// Waits until at most N of this warpgroup's groups are under way.
template <int N> POEM_DEVICE void wgmma_wait(POEM_SITE_ONLY) {
  POEM_TWIN(emu::wgmma_wait(N, site), asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"));
}

#if defined(POEM_EMULATED)
template <class T> constexpr emu::Format format_of = same_type<T, bf16>  ? emu::Format::bf16
                                                     : same_type<T, f16> ? emu::Format::f16
                                                                         : emu::Format::e4m3;

// Without `accumulate` D is not read. TRANSPOSED_A and TRANSPOSED_B: the rows of that operand run along M or N.
template <class T, bool TRANSPOSED_A = false, bool TRANSPOSED_B = false, int R>
inline void wgmma(float (&d)[R], uint64_t a, uint64_t b, bool accumulate POEM_SITE) {
  static_assert(sizeof(T) == 2 || (!TRANSPOSED_A && !TRANSPOSED_B), "8-bit operands run along K");
  emu::wgmma(d, 2 * R, nullptr, a, b, accumulate, format_of<T>, TRANSPOSED_A, TRANSPOSED_B, site);
}
template <class T, bool TRANSPOSED_B = false, int R>
inline void wgmma(float (&d)[R], const uint32_t (&a)[4], uint64_t b, bool accumulate POEM_SITE) {
  static_assert(sizeof(T) == 2 || !TRANSPOSED_B, "8-bit operands run along K");
  emu::wgmma(d, 2 * R, a, 0, b, accumulate, format_of<T>, false, TRANSPOSED_B, site);
}
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
// clang-format off
// The registers of D in the text of the instruction, and as its operands, 8 columns at a time.
#define POEM_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define POEM_R8 "%0, %1, %2, %3"
#define POEM_R16 POEM_R8 ", %4, %5, %6, %7"
#define POEM_R24 POEM_R16 ", %8, %9, %10, %11"
#define POEM_R32 POEM_R24 ", %12, %13, %14, %15"
#define POEM_R40 POEM_R32 ", %16, %17, %18, %19"
#define POEM_R48 POEM_R40 ", %20, %21, %22, %23"
#define POEM_R56 POEM_R48 ", %24, %25, %26, %27"
#define POEM_R64 POEM_R56 ", %28, %29, %30, %31"
#define POEM_R72 POEM_R64 ", %32, %33, %34, %35"
#define POEM_R80 POEM_R72 ", %36, %37, %38, %39"
#define POEM_R88 POEM_R80 ", %40, %41, %42, %43"
#define POEM_R96 POEM_R88 ", %44, %45, %46, %47"
#define POEM_R104 POEM_R96 ", %48, %49, %50, %51"
#define POEM_R112 POEM_R104 ", %52, %53, %54, %55"
#define POEM_R120 POEM_R112 ", %56, %57, %58, %59"
#define POEM_R128 POEM_R120 ", %60, %61, %62, %63"
#define POEM_R136 POEM_R128 ", %64, %65, %66, %67"
#define POEM_R144 POEM_R136 ", %68, %69, %70, %71"
#define POEM_R152 POEM_R144 ", %72, %73, %74, %75"
#define POEM_R160 POEM_R152 ", %76, %77, %78, %79"
#define POEM_R168 POEM_R160 ", %80, %81, %82, %83"
#define POEM_R176 POEM_R168 ", %84, %85, %86, %87"
#define POEM_R184 POEM_R176 ", %88, %89, %90, %91"
#define POEM_R192 POEM_R184 ", %92, %93, %94, %95"
#define POEM_R200 POEM_R192 ", %96, %97, %98, %99"
#define POEM_R208 POEM_R200 ", %100, %101, %102, %103"
#define POEM_R216 POEM_R208 ", %104, %105, %106, %107"
#define POEM_R224 POEM_R216 ", %108, %109, %110, %111"
#define POEM_R232 POEM_R224 ", %112, %113, %114, %115"
#define POEM_R240 POEM_R232 ", %116, %117, %118, %119"
#define POEM_R248 POEM_R240 ", %120, %121, %122, %123"
#define POEM_R256 POEM_R248 ", %124, %125, %126, %127"
#define POEM_D8 POEM_F4(0)
#define POEM_D16 POEM_D8, POEM_F4(4)
#define POEM_D24 POEM_D16, POEM_F4(8)
#define POEM_D32 POEM_D24, POEM_F4(12)
#define POEM_D40 POEM_D32, POEM_F4(16)
#define POEM_D48 POEM_D40, POEM_F4(20)
#define POEM_D56 POEM_D48, POEM_F4(24)
#define POEM_D64 POEM_D56, POEM_F4(28)
#define POEM_D72 POEM_D64, POEM_F4(32)
#define POEM_D80 POEM_D72, POEM_F4(36)
#define POEM_D88 POEM_D80, POEM_F4(40)
#define POEM_D96 POEM_D88, POEM_F4(44)
#define POEM_D104 POEM_D96, POEM_F4(48)
#define POEM_D112 POEM_D104, POEM_F4(52)
#define POEM_D120 POEM_D112, POEM_F4(56)
#define POEM_D128 POEM_D120, POEM_F4(60)
#define POEM_D136 POEM_D128, POEM_F4(64)
#define POEM_D144 POEM_D136, POEM_F4(68)
#define POEM_D152 POEM_D144, POEM_F4(72)
#define POEM_D160 POEM_D152, POEM_F4(76)
#define POEM_D168 POEM_D160, POEM_F4(80)
#define POEM_D176 POEM_D168, POEM_F4(84)
#define POEM_D184 POEM_D176, POEM_F4(88)
#define POEM_D192 POEM_D184, POEM_F4(92)
#define POEM_D200 POEM_D192, POEM_F4(96)
#define POEM_D208 POEM_D200, POEM_F4(100)
#define POEM_D216 POEM_D208, POEM_F4(104)
#define POEM_D224 POEM_D216, POEM_F4(108)
#define POEM_D232 POEM_D224, POEM_F4(112)
#define POEM_D240 POEM_D232, POEM_F4(116)
#define POEM_D248 POEM_D240, POEM_F4(120)
#define POEM_D256 POEM_D248, POEM_F4(124)

template <int N> struct Wgmma;
#define POEM_WGMMA_TEXT(SHAPE, R, ACCUMULATE, REST)                                                                              \
  "{ .reg .pred p; setp.ne.b32 p, " ACCUMULATE ", 0; wgmma.mma_async.sync.aligned." SHAPE " {" R "}, " REST "; }"
// Q0 to Q6 number the operands after D.
#define POEM_WGMMA(N, R, D, Q0, Q1, Q2, Q3, Q4, Q5, Q6)                                                                          \
  template <> struct Wgmma<N> {                                                                                                  \
    template <int TA, int TB> POEM_DEVICE static void bf16_shared(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {   \
      asm volatile(POEM_WGMMA_TEXT("m64n" #N "k16.f32.bf16.bf16", R, Q2, Q0 ", " Q1 ", p, 1, 1, " Q3 ", " Q4)                    \
                   : D : "l"(a), "l"(b), "r"(accumulate), "n"(TA), "n"(TB) : "memory");                                          \
    }                                                                                                                            \
    template <int TA, int TB> POEM_DEVICE static void f16_shared(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {    \
      asm volatile(POEM_WGMMA_TEXT("m64n" #N "k16.f32.f16.f16", R, Q2, Q0 ", " Q1 ", p, 1, 1, " Q3 ", " Q4)                      \
                   : D : "l"(a), "l"(b), "r"(accumulate), "n"(TA), "n"(TB) : "memory");                                          \
    }                                                                                                                            \
    POEM_DEVICE static void e4m3_shared(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {                             \
      asm volatile(POEM_WGMMA_TEXT("m64n" #N "k32.f32.e4m3.e4m3", R, Q2, Q0 ", " Q1 ", p, 1, 1")                                 \
                   : D : "l"(a), "l"(b), "r"(accumulate) : "memory");                                                            \
    }                                                                                                                            \
    template <int TB> POEM_DEVICE static void bf16_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
      asm volatile(POEM_WGMMA_TEXT("m64n" #N "k16.f32.bf16.bf16", R, Q5,                                                         \
                                   "{" Q0 ", " Q1 ", " Q2 ", " Q3 "}, " Q4 ", p, 1, 1, " Q6)                                     \
                   : D : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TB) : "memory");               \
    }                                                                                                                            \
    template <int TB> POEM_DEVICE static void f16_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
      asm volatile(POEM_WGMMA_TEXT("m64n" #N "k16.f32.f16.f16", R, Q5,                                                           \
                                   "{" Q0 ", " Q1 ", " Q2 ", " Q3 "}, " Q4 ", p, 1, 1, " Q6)                                     \
                   : D : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TB) : "memory");               \
    }                                                                                                                            \
    POEM_DEVICE static void e4m3_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {              \
      asm volatile(POEM_WGMMA_TEXT("m64n" #N "k32.f32.e4m3.e4m3", R, Q5, "{" Q0 ", " Q1 ", " Q2 ", " Q3 "}, " Q4 ", p, 1, 1")    \
                   : D : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate) : "memory");                        \
    }                                                                                                                            \
  };
POEM_WGMMA(8, POEM_R8, POEM_D8, "%4", "%5", "%6", "%7", "%8", "%9", "%10")
POEM_WGMMA(16, POEM_R16, POEM_D16, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
POEM_WGMMA(24, POEM_R24, POEM_D24, "%12", "%13", "%14", "%15", "%16", "%17", "%18")
POEM_WGMMA(32, POEM_R32, POEM_D32, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
POEM_WGMMA(40, POEM_R40, POEM_D40, "%20", "%21", "%22", "%23", "%24", "%25", "%26")
POEM_WGMMA(48, POEM_R48, POEM_D48, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
POEM_WGMMA(56, POEM_R56, POEM_D56, "%28", "%29", "%30", "%31", "%32", "%33", "%34")
POEM_WGMMA(64, POEM_R64, POEM_D64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
POEM_WGMMA(72, POEM_R72, POEM_D72, "%36", "%37", "%38", "%39", "%40", "%41", "%42")
POEM_WGMMA(80, POEM_R80, POEM_D80, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
POEM_WGMMA(88, POEM_R88, POEM_D88, "%44", "%45", "%46", "%47", "%48", "%49", "%50")
POEM_WGMMA(96, POEM_R96, POEM_D96, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
POEM_WGMMA(104, POEM_R104, POEM_D104, "%52", "%53", "%54", "%55", "%56", "%57", "%58")
POEM_WGMMA(112, POEM_R112, POEM_D112, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
POEM_WGMMA(120, POEM_R120, POEM_D120, "%60", "%61", "%62", "%63", "%64", "%65", "%66")
POEM_WGMMA(128, POEM_R128, POEM_D128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
POEM_WGMMA(136, POEM_R136, POEM_D136, "%68", "%69", "%70", "%71", "%72", "%73", "%74")
POEM_WGMMA(144, POEM_R144, POEM_D144, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
POEM_WGMMA(152, POEM_R152, POEM_D152, "%76", "%77", "%78", "%79", "%80", "%81", "%82")
POEM_WGMMA(160, POEM_R160, POEM_D160, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
POEM_WGMMA(168, POEM_R168, POEM_D168, "%84", "%85", "%86", "%87", "%88", "%89", "%90")
POEM_WGMMA(176, POEM_R176, POEM_D176, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
POEM_WGMMA(184, POEM_R184, POEM_D184, "%92", "%93", "%94", "%95", "%96", "%97", "%98")
POEM_WGMMA(192, POEM_R192, POEM_D192, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
POEM_WGMMA(200, POEM_R200, POEM_D200, "%100", "%101", "%102", "%103", "%104", "%105", "%106")
POEM_WGMMA(208, POEM_R208, POEM_D208, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
POEM_WGMMA(216, POEM_R216, POEM_D216, "%108", "%109", "%110", "%111", "%112", "%113", "%114")
POEM_WGMMA(224, POEM_R224, POEM_D224, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
POEM_WGMMA(232, POEM_R232, POEM_D232, "%116", "%117", "%118", "%119", "%120", "%121", "%122")
POEM_WGMMA(240, POEM_R240, POEM_D240, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
POEM_WGMMA(248, POEM_R248, POEM_D248, "%124", "%125", "%126", "%127", "%128", "%129", "%130")
POEM_WGMMA(256, POEM_R256, POEM_D256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")

// clang-format on
template <class T, bool TRANSPOSED_A = false, bool TRANSPOSED_B = false, int R>
POEM_DEVICE void wgmma(float (&d)[R], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(sizeof(T) == 2 || (!TRANSPOSED_A && !TRANSPOSED_B), "8-bit operands run along K");
  if constexpr (same_type<T, bf16>) Wgmma<2 * R>::template bf16_shared<TRANSPOSED_A, TRANSPOSED_B>(d, a, b, accumulate);
  else if constexpr (same_type<T, f16>) Wgmma<2 * R>::template f16_shared<TRANSPOSED_A, TRANSPOSED_B>(d, a, b, accumulate);
  else Wgmma<2 * R>::e4m3_shared(d, a, b, accumulate);
}
template <class T, bool TRANSPOSED_B = false, int R>
POEM_DEVICE void wgmma(float (&d)[R], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(sizeof(T) == 2 || !TRANSPOSED_B, "8-bit operands run along K");
  if constexpr (same_type<T, bf16>) Wgmma<2 * R>::template bf16_registers<TRANSPOSED_B>(d, a, b, accumulate);
  else if constexpr (same_type<T, f16>) Wgmma<2 * R>::template f16_registers<TRANSPOSED_B>(d, a, b, accumulate);
  else Wgmma<2 * R>::e4m3_registers(d, a, b, accumulate);
}
#endif

}  // namespace poem
