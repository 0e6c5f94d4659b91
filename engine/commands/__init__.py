"""Subcommands of `prefixgate` that belong to the engine: each is a function `main(argv) -> exit status`."""
