"""The page of all settings, made from their table in ``config.keys``."""

from ci.reference.commands import MADE
from tsuku_llm.config.keys import KEYS, text_of

ABOUT = """\
# Settings

A value comes from a flag, else from the variable, else from the config file, else it is the default. `tsuku-llm config list` shows each value with its source, and `tsuku-llm config path` the file. In the file the settings stand below `[llm]`, without `llm.`:

```toml
[llm]
backend = "vulkan"
min_age = 7
release = "installed"
```

`tsuku-llm config set KEY VALUE`, `config get KEY` and `config unset KEY` work on one setting. A wrong value ends every command with exit code 2 and the place of the value, except `config`, `doctor`, `status`, `logs`, `open`, `stop` and `self-update`, which go on with the default and a warning. A password in the URL of a mirror is shown as `***`, except by `config get`.
"""

REST = """\
## Other variables

| variable | what it does |
|---|---|
| `TSUKU_HOME` | the folder for settings, builds and servers, instead of the system's folders |
| `TSUKU_LLM_FAKE_HARDWARE` | a file of `probe --record`, which stands for this machine; every output says so |
| `TSUKU_LLM_STRICT` | `1`: refuse such a file |
| `NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE` | colours, if `--color` is not given |
| `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` | the proxy, and the certificates that are trusted |
"""


def page() -> str:
    """Return the page: each setting with its default, its variable and what it does."""
    rows = ["| setting | default | variable | what it is |", "|---|---|---|---|"]
    for key in KEYS:
        default = f"`{text_of(key.default)}`" if text_of(key.default) else "unset"
        rows.append(f"| `{key.name}` | {default} | `{key.variable}` | {key.help} |")
    return "\n".join([MADE, ABOUT, *rows, "", REST])
