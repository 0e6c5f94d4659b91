"""Commands of `prefixgate`, each a function (argv) -> exit status."""
