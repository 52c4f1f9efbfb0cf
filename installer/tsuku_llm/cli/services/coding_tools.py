"""The settings with which coding tools use a server of ours. Data only.

``$url`` is the address of the server, ``$base`` that of its OpenAI API, ``$model`` the name of the
model, and ``$key`` the API key. The pages were looked up on 28 November 2026, some as excerpts.
None of the tools was started with these settings.

A tool has a ``ToolFile`` if its pages name the file, and if that is JSON or TOML. Zed and VS Code
read JSON with comments and Continue reads YAML: no library here keeps the comments of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground.errors import ConfigError


class ToolFile(NamedTuple):
    """The file of a user from which a tool reads settings, and the page that says so.

    ``variable`` names another folder in place of ``folder``. ``settings`` is what is added, None
    for what is printed; ``in_shell`` is what the tool needs besides.
    """

    variable: str
    folder: str
    name: str
    source: str
    settings: str | None = None
    in_shell: str = ""

    def path(self, environ: Mapping[str, str]) -> Path:
        """Return the file of this user. Raises ``ConfigError`` for a user without a home folder."""
        named = environ.get(self.variable) or self.folder
        try:
            return Path(named).expanduser() / self.name
        except RuntimeError as error:
            raise ConfigError(
                f"{named} cannot be found: this user has no home folder",
                hint=f"set HOME or {self.variable}",
            ) from error


class CodingTool(NamedTuple):
    """A tool: where its settings belong, what they are, and the page or thread that says so."""

    place: str
    settings: str
    source: str
    file: ToolFile | None = None


TOOLS = {
    "claude": CodingTool(
        "in a shell, before claude starts",
        """export ANTHROPIC_BASE_URL=$url
export ANTHROPIC_AUTH_TOKEN=$key
export ANTHROPIC_MODEL=$model""",
        "https://docs.anthropic.com/en/docs/claude-code/llm-gateway",
        ToolFile(
            "CLAUDE_CONFIG_DIR",
            "~/.claude",
            "settings.json",
            "https://code.claude.com/docs/en/env-vars",
            """{
  "env": {
    "ANTHROPIC_BASE_URL": "$url",
    "ANTHROPIC_AUTH_TOKEN": "$key",
    "ANTHROPIC_MODEL": "$model"
  }
}""",
        ),
    ),
    "codex": CodingTool(
        "in ~/.codex/config.toml; and in the shell: export TSUKU_LLM_KEY=$key",
        """model = "$model"
model_provider = "tsuku-llm"

[model_providers.tsuku-llm]
name = "tsuku-llm"
base_url = "$base"
env_key = "TSUKU_LLM_KEY"
wire_api = "responses\"""",
        "https://developers.openai.com/codex/config-advanced",
        ToolFile(
            "CODEX_HOME",
            "~/.codex",
            "config.toml",
            "https://developers.openai.com/codex/config-advanced",
            in_shell="export TSUKU_LLM_KEY=$key",
        ),
    ),
    "opencode": CodingTool(
        "in ~/.config/opencode/opencode.json",
        """{
  "$$schema": "https://opencode.ai/config.json",
  "model": "tsuku-llm/$model",
  "provider": {
    "tsuku-llm": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "$base", "apiKey": "$key"},
      "models": {"$model": {}}
    }
  }
}""",
        "https://docs.ollama.com/integrations/opencode",
        ToolFile(
            "XDG_CONFIG_HOME",
            "~/.config",
            "opencode/opencode.json",
            "https://opencode.ai/docs/config/",
        ),
    ),
    "continue": CodingTool(
        "in ~/.continue/config.yaml",
        """name: tsuku-llm
version: 0.0.1
schema: v1
models:
  - name: "$model"
    provider: openai
    model: "$model"
    apiBase: $base
    apiKey: $key""",
        "https://docs.continue.dev/customize/model-providers/top-level/openai",
    ),
    "zed": CodingTool(
        "in Zed's settings.json; and in the shell that starts Zed: export TSUKU_LLM_API_KEY=$key",
        """{
  "language_models": {
    "openai_compatible": {
      "tsuku-llm": {
        "api_url": "$base",
        "available_models": [{"name": "$model", "max_tokens": 32768}]
      }
    }
  }
}""",
        "https://zed.dev/docs/ai/use-a-local-model",
    ),
    "aider": CodingTool(
        "in a shell",
        """export OPENAI_API_BASE=$base
export OPENAI_API_KEY=$key
aider --model openai/$model""",
        "https://aider.chat/docs/llms/openai-compat.html",
    ),
    "vscode": CodingTool(
        "in chatLanguageModels.json: run Chat: Open Language Models (JSON)",
        """[
  {
    "name": "tsuku-llm",
    "vendor": "customendpoint",
    "apiKey": "$key",
    "apiType": "chat-completions",
    "models": [
      {
        "id": "$model",
        "name": "$model",
        "url": "$base/chat/completions",
        "toolCalling": true,
        "vision": false,
        "maxInputTokens": 28672,
        "maxOutputTokens": 4096
      }
    ]
  }
]""",
        "https://github.com/microsoft/vscode/issues/316916",
    ),
    "open-webui": CodingTool(
        "in a shell, before open-webui starts",
        """export OPENAI_API_BASE_URL=$base
export OPENAI_API_KEY=$key
open-webui serve""",
        "https://github.com/open-webui/open-webui/blob/main/.env.example",
    ),
    # For every other tool: the variables that OpenAI's own libraries read.
    "openai": CodingTool(
        "in a shell, or in the tool's own settings; the model is $model",
        """export OPENAI_BASE_URL=$base
export OPENAI_API_KEY=$key""",
        "https://github.com/openai/openai-python/blob/main/src/openai/_client.py",
    ),
}
