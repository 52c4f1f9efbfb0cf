"""Settings from flags, environment and config file, each with its source; and the paths we use.

The config file is ``config.toml``. With ``TSUKU_HOME`` set it is tsuku's file, in which only the
table ``[llm]`` belongs to us. The module ``editing`` changes the file; it is separate because
``serve`` never does. tomli, tomlkit and platformdirs are imported inside functions: many commands
need none of them.
"""
