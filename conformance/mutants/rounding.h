// rounding.h: a wrong rounding. Included after everything else of a mutated prelude.
#pragma once

namespace poem {
template <class T> inline float towards_zero(float x) {
  if constexpr (same_type<T, float>) {
    return bits_float(float_bits(x) & 0xffff0000u);
  } else {
    T r = from_float<T>(x);
    if (fabsf(to_float(r)) > fabsf(x)) r.bits -= 1;
    return to_float(r);
  }
}
}  // namespace poem
