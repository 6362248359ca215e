// switch.h: at run time, which mutant of a source is on. Included before everything else of a mutated source.
//
// MUTANT(n) is true if mutant n is on, which is one comparison. Neither it nor what it calls is seen by the emulator's checker.
#pragma once

extern "C" {
__attribute__((const)) int poem_mutant_on() noexcept;
__attribute__((const, cold)) bool poem_mutant_reached(int mutant) noexcept;
}
// The number of the mutant that is on, 0 for none; a negative number asks every mutant to note that it was reached.
#define MUTANT(n) (__builtin_expect((poem_mutant_on() ^ (n)) <= 0, 0) && poem_mutant_reached(n))

namespace poem {
// x rounded towards zero to what T holds; to 8 bits where T is float.
template <class T> inline float towards_zero(float x);
}  // namespace poem
