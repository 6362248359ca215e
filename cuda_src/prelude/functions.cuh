// Approximate functions and bit operations.
//
// The functions of CUDA's mathematics (expf, tanhf, erff, sinf, logf, ...) are at most 2 units in the last place off and are
// called by their names. These are the single instructions behind them, with the errors that the PTX manual states. The
// emulator does not compute them better than a device may: it errs by up to the same bound, always alike for the same argument.
#pragma once

namespace poem {

// 2^x, at most 2 units in the last place off; exact at 0 and for infinite x. Subnormal results become 0.
POEM_DEVICE float exp2_approx(float x) {
  float y;
  POEM_TWIN(y = emu::exp2_approx(x), asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)));
  return y;
}
// log2 x, off by at most 2^-22: in itself for x in (1/2, 2), relative elsewhere. Subnormal x count as 0.
POEM_DEVICE float log2_approx(float x) {
  float y;
  POEM_TWIN(y = emu::log2_approx(x), asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)));
  return y;
}
// 1/x, at most 1 unit in the last place off. Subnormal x count as 0, subnormal results become 0.
POEM_DEVICE float reciprocal_approx(float x) {
  float y;
  POEM_TWIN(y = emu::reciprocal_approx(x), asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)));
  return y;
}
// 1/sqrt(x), relative error at most 2^-22.9. Subnormal x count as 0.
POEM_DEVICE float rsqrt_approx(float x) {
  float y;
  POEM_TWIN(y = emu::rsqrt_approx(x), asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)));
  return y;
}
// tanh x, relative error at most 2^-11: good for gates that are rounded to bf16 or narrower, not for float32 results.
POEM_DEVICE float tanh_approx(float x) {
  float y;
  POEM_TWIN(y = emu::tanh_approx(x), asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)));
  return y;
}

// Any function of three bits, bit by bit: TABLE is its value at (a, b, c) = (0xF0, 0xCC, 0xAA).
template <int TABLE> POEM_DEVICE uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  POEM_TWIN(r = emu::lop3(TABLE, a, b, c), asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(b), "r"(c), "n"(TABLE)));
  return r;
}
// Four bytes picked from the eight of (low, high), byte i by nibble i of `selector`; bit 3 of a nibble repeats the byte's sign.
POEM_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t r;
  POEM_TWIN(r = emu::permute_bytes(low, high, selector), asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector)));
  return r;
}
// One lane of the warp, the same for every call with all lanes present.
POEM_DEVICE bool elect_lane(POEM_SITE_ONLY) {
  uint32_t chosen;
  POEM_TWIN(chosen = emu::elect_lane(site),
            asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen)));
  return chosen;
}

}  // namespace poem
