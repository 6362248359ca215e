"""The command line: one module per subcommand, named `<subcommand>_.py`."""
