"""Which model a user's words mean."""

import pytest

from tsuku_llm.model_caches.naming import LocalModel, matching, named, quantisation_of


def local(
    path: str, repository: str | None = None, source: str = "folder", name: str = ""
) -> LocalModel:
    tag = quantisation_of(path, None)
    return LocalModel(name, source, f"/m/{path}", (path,), 1, repository, path, tag)


HERE = named(
    [
        local("Qwen3-8B-Q4_K_M.gguf", "Qwen/Qwen3-8B-GGUF", "huggingface"),
        local("Qwen3-8B-Q8_0.gguf", "Qwen/Qwen3-8B-GGUF", "huggingface"),
        local("gemma-3-4b-it-UD-Q4_K_XL.gguf", "unsloth/gemma-3-4b-it-GGUF", "lm-studio"),
        local("sha256-1", source="ollama", name="qwen2.5:7b"),
        local("sha256-2", source="ollama", name="llama3.2:latest"),
        local("sha256-3", source="ollama", name="llama3.2:1b"),
        local("big-Q4_K_M-00001-of-00003.gguf"),
        local("sub/tiny.gguf"),
    ]
)


def meant(text: str) -> list[str]:
    return [model.name for model in matching(text, HERE)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("qwen2.5:7b", "qwen2.5:7b"),
        ("QWEN2.5:7B", "qwen2.5:7b"),
        ("qwen2.5", "qwen2.5:7b"),
        ("library/qwen2.5:7b", "qwen2.5:7b"),
        ("llama3.2", "llama3.2:latest"),
        ("llama3.2:1b", "llama3.2:1b"),
        ("Qwen/Qwen3-8B-GGUF:Q8_0", "Qwen/Qwen3-8B-GGUF:Q8_0"),
        ("qwen/qwen3-8b-gguf:q8_0", "Qwen/Qwen3-8B-GGUF:Q8_0"),
        ("qwen3-8b@q8_0", "Qwen/Qwen3-8B-GGUF:Q8_0"),
        ("Qwen3-8B-Q4_K_M.gguf", "Qwen/Qwen3-8B-GGUF:Q4_K_M"),
        ("Qwen3-8B-Q4_K_M", "Qwen/Qwen3-8B-GGUF:Q4_K_M"),
        ("unsloth/gemma-3-4b-it-GGUF", "unsloth/gemma-3-4b-it-GGUF:UD-Q4_K_XL"),
        ("gemma-3-4b-it", "unsloth/gemma-3-4b-it-GGUF:UD-Q4_K_XL"),
        ("gemma", "unsloth/gemma-3-4b-it-GGUF:UD-Q4_K_XL"),
        ("UD-Q4_K_XL", "unsloth/gemma-3-4b-it-GGUF:UD-Q4_K_XL"),
        ("big-Q4_K_M-00001-of-00003.gguf", "big-Q4_K_M"),
        ("tiny", "tiny"),
        ("sub/tiny", "tiny"),
    ],
)
def test_these_words_mean_one_model(text: str, name: str) -> None:
    assert meant(text) == [name]


def test_several_models_or_none_may_be_meant() -> None:
    assert meant("Qwen/Qwen3-8B-GGUF") == ["Qwen/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B-GGUF:Q8_0"]
    assert len(meant("qwen")) == 3
    assert meant("mistral") == meant("") == meant("  ") == []


@pytest.mark.parametrize(
    ("file", "kind", "tag"),
    [
        ("m-Q4_K_M.gguf", 7, "Q4_K_M"),
        ("m.q8_0.gguf", None, "Q8_0"),
        ("m-IQ3_XXS-00001-of-00002.gguf", None, "IQ3_XXS"),
        ("gpt-oss-MXFP4.gguf", 38, "MXFP4"),
        ("llama.gguf", 15, "Q4_K_M"),
        ("llama.gguf", 1024 + 7, "Q8_0"),
        ("llama-3.gguf", None, None),
        ("sha256-abc", 5, None),
        ("sha256-abc", 1 << 31, "F32"),
        ("sha256-abc", "Q4", None),
    ],
)
def test_the_quantisation_is_that_of_the_name_or_of_the_header(
    file: str, kind: object, tag: str | None
) -> None:
    assert quantisation_of(file, kind) == tag
