// switch.cpp: one switch for all mutated sources, and which mutants were reached.
extern "C" {
int poem_mutant = 0;
unsigned char poem_mutants_reached[1 << 16];
int poem_mutant_on() noexcept { return poem_mutant; }
bool poem_mutant_reached(int mutant) noexcept {
  if (poem_mutant < 0) poem_mutants_reached[mutant] = 1;
  return poem_mutant == mutant;
}
}
