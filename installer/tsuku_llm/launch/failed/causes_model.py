"""The causes that lie in the model's file or its parts.

Each row comes from upstream's sources or a report. ``tests/last_words.txt`` has at least one text
with its source for each row.
"""

from __future__ import annotations

from tsuku_llm.launch.failed.causes import UPDATE_BUILD, Cause

_CONVERTED = "get a newer conversion of it, or update the build (tsuku-llm update)"
_AGAIN = "download it again, and compare its size or checksum"
_ALL_PARTS = "keep all parts in one folder under their own names, and give the first one with -m"

# On one line the first row that matches counts, so narrower rows come first.
MODEL = (
    # --- parts of a model ---
    Cause(
        "model-part",
        "arguments",
        r"model must be loaded with the first split",
        "this file is a later part of a split model",
        _ALL_PARTS,
    ),
    Cause(
        "model-part",
        "model",
        r"failed to load GGUF split from (?P<model>[^\n]+)",
        "a part of the split model is missing or damaged: {model}",
        _ALL_PARTS,
    ),
    Cause(
        "model-part",
        "model",
        r"invalid split (?:file|count)|missing key \S+ in GGUF split"
        r"|corrupted model: \d+ tensors expected",
        "the parts of the split model do not belong together, or were joined or renamed",
        _ALL_PARTS,
    ),
    # --- the model's file ---
    Cause(
        "model-missing",
        "arguments",
        r"failed to open (?:GGUF file )?'?(?P<model>[^'\n]+?)'?:? \(?No such file",
        "the model {model} does not exist",
        "check the path given with {option}",
    ),
    Cause(
        "model-unreadable",
        "system",
        r"failed to open (?:GGUF file )?'?(?P<model>[^'\n]+?)'?:? "
        r"\(?(?:Permission|Operation not permitted)",
        "this user may not read the model {model}",
        "check its permissions and those of its folders",
    ),
    Cause(
        "model-unreadable",
        "arguments",
        r"failed to open (?:GGUF file )?'?(?P<model>[^'\n]+?)'?:? \(?Is a directory"
        r"|read error: Is a directory",
        "a folder was given where the server expects a file",
        "give the GGUF file itself with {option}",
    ),
    # Versions that do not print the system's reason.
    Cause(
        "model-missing",
        "arguments",
        r"failed to open GGUF file '?(?P<model>[^'\n]+)'?",
        "the model {model} cannot be opened",
        "check the path given with {option}",
    ),
    Cause(
        "not-a-model",
        "model",
        r"invalid magic characters: |failed to read magic|invalid magic number",
        "the model file is not a GGUF file, or it is empty or a folder",
        "check the path given with {option}; an interrupted or redirected download looks like this",
    ),
    Cause(
        "byte-order",
        "model",
        r"mismatch between the host and model endianness",
        "the model is made for machines with the other byte order, or its head is damaged",
        "convert it (gguf_convert_endian.py), or download it again",
    ),
    Cause(
        "model-too-new",
        "model",
        r"GGUF file is version (?P<version>\d+) but this software only supports up to",
        "the model's format, GGUF version {version}, is newer than this build",
        UPDATE_BUILD,
    ),
    Cause(
        "model-too-old",
        "model",
        r"GGUFv1 is no longer supported|bad GGUF version|unsupported file version"
        r"|tensor '[^'\n]*' (?:of|has) type [^\n]*(?:removed|deprecated)|TYPE_\S+ REMOVED",
        "the model's format is too old for this build",
        "download a newer conversion of the model",
    ),
    Cause(
        "model-too-new",
        "model",
        r"has invalid ggml type (?P<type>\d+)",
        "this build does not know a quantisation of the model (type {type})",
        f"{UPDATE_BUILD}; if that does not help, the model is for another program",
    ),
    Cause(
        "model-incomplete",
        "model",
        r"not within (?:the )?file bounds|model is corrupted or incomplete"
        r"|unexpectedly reached end of|exceeds remaining file size|string length \d+ exceeds",
        "the model file is incomplete or damaged",
        _AGAIN,
    ),
    # The loader's last word after any complaint about a part, and its only one at the file's end.
    Cause(
        "model-incomplete",
        "model",
        r"failed to (?:read (?:tensor data|key-value pairs|tensor info|header)|seek to beginning of"
        r" data)",
        "the model file is incomplete or damaged",
        _AGAIN,
        rank=1,
    ),
    Cause(
        "model-damaged",
        "model",
        r"has invalid data|found tensors with invalid data|quantized data validation failed"
        r"|has invalid GGUF type|has invalid number of|duplicate (?:key|tensor name)"
        r"|is duplicated|has offset \d+, expected|size overflow, cannot accumulate",
        "the model file is damaged, or was written by a faulty program",
        _AGAIN,
    ),
    Cause(
        "read-error",
        "system",
        r"read error: (?P<said>[^\n]+)",
        "the model's file cannot be read ({said})",
        "check its disk or network share, and the system's log",
    ),
    Cause(
        "model-too-new",
        "model",
        r"un(?:known|supported) model architecture: '(?P<architecture>[^']+)'",
        "this build does not know the model's architecture, {architecture}",
        UPDATE_BUILD,
    ),
    Cause(
        "tokenizer",
        "model",
        r"unknown pre-tokenizer type: '(?P<kind>[^']*)'|unknown tokenizer: '(?P<kind_model>[^']*)'",
        "this build does not know the model's tokenizer, {kind}",
        UPDATE_BUILD,
    ),
    Cause(
        "tokenizer",
        "model",
        r"cannot find tokenizer (?P<part>vocab|merges) in model file"
        r"|error loading model vocabulary: (?P<part_said>[^\n]+)"
        r"|(?P<part_token>vocab missing newline token|precompiled_charsmap too small)",
        "the model's tokenizer is incomplete ({part})",
        _CONVERTED,
    ),
    Cause(
        "model-tensors",
        "model",
        r"wrong number of tensors; expected|missing tensor '|has wrong (?:shape|type); expected"
        r"|tensor '[^'\n]*' not found|too many tensors created|done_getting_tensors",
        "the model's tensors are not those that this build expects",
        _CONVERTED,
    ),
    Cause(
        "model-metadata",
        "model",
        r"key not found in model: (?P<key>\S+)|key (?P<key_wrong>\S+) has wrong (?:array|type)"
        r"|array length \d+ for key (?P<key_long>\S+)"
        r"|array key not found in model: (?P<key_array>\S+)|missing key '?(?P<key_missing>[\w.]+)'?"
        r"|(?P<key_any>error loading model hyperparameters)",
        "the model's metadata lacks what this build needs, or has it in another form ({key})",
        _CONVERTED,
    ),
    Cause(
        "model-metadata",
        "model",
        r"invalid n_rot: |n_expert(?:_used)? must be > 0|model cannot have zero experts"
        r"|unknown rope (?:scaling|type)",
        "the model's metadata contradicts itself",
        _CONVERTED,
    ),
)
