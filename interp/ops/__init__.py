"""One module for each op namespace, one function for each op. `interp.call` says how such a function is written."""
