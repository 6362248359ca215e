// functions.cpp: approximate functions with errors as large as the PTX manual allows.
//
// A device computes them worse than the host's library does, and nobody says how. So the result here is the true one, pushed by a part of
// the allowed error that depends on the bits of the argument alone: a kernel that needs more accuracy than it is promised fails its bounds.
#include "machine.h"

namespace poem::emu {

static uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
// From -1 to 1, fixed by x and the function.
static double push(float x, uint32_t function) {
  uint32_t h = (bits_of(x) + function) * 2654435761u;
  h = (h ^ h >> 15) * 2246822519u;
  h = (h ^ h >> 13) * 3266489917u;
  return (h ^ h >> 16) / 2147483647.5 - 1.0;
}
static bool ordinary(double y) { return y != 0 && std::isfinite(y); }
static float flush(float y) { return std::fabs(y) < 0x1p-126f ? std::copysign(0.0f, y) : y; }
// Half a unit in the last place is left for the rounding of the result; a unit is at least 2^-24 |y|.
static float within_ulps(double y, double ulps, float x, uint32_t function) {
  return (float)(ordinary(y) ? y * (1 + push(x, function) * (ulps - 0.5) * 0x1p-24) : y);
}
static float within_relative(double y, double error, float x, uint32_t function) {
  return (float)(ordinary(y) ? y * (1 + push(x, function) * (error - 0x1p-24)) : y);
}

float exp2_approx(float x) {
  x = flush(x);
  return x == 0 ? 1.0f : flush(within_ulps(std::exp2((double)x), 2, x, 1));
}
float log2_approx(float x) {
  x = flush(x);
  const double y = std::log2((double)x);
  if (!ordinary(y)) return (float)y;
  const double allowed = 0x1p-22 * (x > 0.5f && x < 2.0f ? 1.0 : std::fabs(y));
  return (float)(y + push(x, 2) * (allowed - 0x1p-24 * std::fabs(y)));
}
float reciprocal_approx(float x) {
  x = flush(x);
  return flush(within_ulps(1 / (double)x, 1, x, 3));
}
float rsqrt_approx(float x) {
  x = flush(x);
  return within_relative(1 / std::sqrt((double)x), 1.277e-7, x, 4);  // 2^-22.9
}
float tanh_approx(float x) {
  const float y = within_relative(std::tanh((double)x), 0x1p-11, x, 5);
  return std::isinf(x) ? std::copysign(1.0f, x) : std::fabs(y) > 1 ? std::copysign(1.0f, y) : y;
}

}  // namespace poem::emu
