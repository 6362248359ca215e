"""The Poem language: loading a package, running its functions, and turning what they say into plain data."""
