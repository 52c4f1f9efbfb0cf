"""The causes that lie in the model's files, or in the arguments of the server.

Each row comes from upstream's sources or a report. ``tests/last_words.txt`` has at least one text
with its source for each row.
"""

from __future__ import annotations

from tsuku_llm.launch.causes import CPU_OVERRIDE, UPDATE_BUILD, Cause

_HELP = "see the arguments of this build: tsuku-llm serve -- --help"
_CONVERTED = "get a newer conversion of it, or update the build (tsuku-llm update)"
_AGAIN = "download it again, and compare its size or checksum"
_ALL_PARTS = "keep all parts in one folder under their own names, and give the first one with -m"

# On one line the first row that matches counts, so narrower rows come first.
MODEL = (
    # --- arguments ---
    Cause(
        "removed-argument",
        "arguments",
        r'"(?P<option>[^"]+)": the argument has been removed\. use (?P<said>[^\n]+)',
        "this build has no argument {option} any more",
        "use {said}",
    ),
    Cause(
        "removed-argument",
        "arguments",
        r'"(?P<option>[^"]+)": the argument has been removed',
        "this build has no argument {option} any more",
        f"leave it out; {_HELP}",
    ),
    Cause(
        "unknown-argument",
        "arguments",
        r"error: (?:invalid|unknown) argument: (?P<option>\S+)",
        "the server does not know the argument {option}",
        _HELP,
    ),
    # Follows: a driver that does not start has no devices either.
    Cause(
        "device-gone",
        "arguments",
        r"invalid device: (?P<device>\S+)",
        "the server does not see the device {device}",
        "see the devices with: tsuku-llm serve -- --list-devices; a driver that waits for a reboot "
        "looks like this",
        CPU_OVERRIDE,
        rank=1,
    ),
    Cause(
        "no-rpc",
        "arguments",
        r"failed to find RPC backend",
        "this build has no RPC backend",
        "leave out --rpc, or install a build that has it",
    ),
    Cause(
        "bad-argument",
        "arguments",
        r'error while handling (?:argument|environment variable) "(?P<option>[^"]+)": '
        r"(?P<said>[^\n]+)",
        "the server refuses the value of {option}: {said}",
        _HELP,
    ),
    Cause(
        "bad-argument",
        "arguments",
        r"error: (?P<said>--model is required|invalid value for n_parallel"
        r"|invalid HF repo format[^\n]*|unknown value for [^\n]+)",
        "an argument is missing or wrong: {said}",
        _HELP,
    ),
    Cause(
        "bad-argument",
        "arguments",
        r"invalid value for main_gpu: (?P<device>\d+) \(available devices: (?P<count>\d+)\)",
        "--main-gpu {device} names no device: there are {count}, counted from 0",
        "give a number that exists, or leave it out",
    ),
    Cause(
        "split-mode",
        "arguments",
        r"device (?P<device>\S+) does not support split buffers",
        "the device {device} cannot split the model by rows",
        "use --split-mode layer",
    ),
    Cause(
        "cache-type",
        "arguments",
        r"(?:V cache quantization|quantized V cache)[^\n]*requires? (?:flash_attn|Flash Attention)",
        "a quantised cache needs Flash Attention, which is off or not possible here",
        "add --flash-attn on, or leave out --cache-type-v",
    ),
    Cause(
        "certificate",
        "arguments",
        r"server is built without SSL support",
        "this build cannot serve with a certificate",
        "leave out --ssl-cert-file and --ssl-key-file, and put a proxy with TLS before it",
    ),
    Cause(
        "certificate",
        "arguments",
        r"failed to load (?:the )?SSL (?:certificate|key)|SSL certificate loading failed"
        r"|(?:PEM_read_bio|BIO_new_file|use_certificate|use_PrivateKey)[^\n]*"
        r"|(?P<said>key values mismatch)",
        "the server's certificate or its key cannot be used",
        "check the files of --ssl-cert-file and --ssl-key-file: PEM, readable, and a pair",
    ),
    Cause(
        "bad-argument",
        "arguments",
        r"static assets path not found: (?P<path>[^\n]+)"
        r"|error: '(?P<path_folder>[^'\n]+)' does not exist or is not a directory",
        "the folder {path} does not exist",
        "check the path given with --path or --models-dir",
    ),
    Cause(
        "bad-argument",
        "arguments",
        r"(?:failed to open server preset file|preset file does not exist): (?P<path>[^\n]+)"
        r"|failed to parse server config file: (?P<path_config>[^\n]+)",
        "the file of presets cannot be read ({path})",
        "check the path given with --models-preset",
    ),
    Cause(
        "bad-argument",
        "arguments",
        r"failed to initialize router models: (?P<said>[^\n]+)",
        "the models of the router cannot be used ({said})",
        "check the folder given with --models-dir, and the file of --models-preset",
    ),
    Cause(
        "rpc-unreachable",
        "arguments",
        r"Failed to connect to (?P<host>[^\s:]+:\d+)|RPC server (?P<said>version mismatch)"
        r"|Remote RPC server crashed|Cannot resolve host '(?P<host_name>[^']*)'",
        "a server of --rpc cannot be used",
        "check that it runs, that this machine reaches it, and that it is of the same release",
    ),
    Cause(
        "chat-template",
        "arguments",
        r"chat template parsing error|failed to initialize chat template"
        r"|the supplied chat template is not supported|custom template is not supported"
        r"|failed to apply (?:chat )?template|Unable to generate parser for this template"
        r"|Jinja Exception",
        "the chat template cannot be used",
        "try --no-jinja, or another one with --chat-template or --chat-template-file",
    ),
    Cause(
        "grammar",
        "arguments",
        r"failed to parse grammar|error parsing grammar|JSON schema conversion failed",
        "the grammar or JSON schema is wrong",
        "check what is given with --grammar, --grammar-file or --json-schema",
    ),
    # --- files that other arguments name ---
    Cause(
        "draft-model",
        "arguments",
        r"target and draft (?:vocabs|models?) are not compatible"
        r"|draft model vocab must (?:closely )?match|draft model '[^\n]*' is not compatible"
        r"|draft model is not eagle3|failed to initialize speculative decoding context",
        "the draft model does not fit the model",
        "use a draft model of the same family, with the same vocabulary",
    ),
    Cause(
        "mmproj",
        "arguments",
        r"mismatch between text model \(n_embd = \d+\) and mmproj|you may be using wrong mmproj"
        r"|mismatch between vision and audio mmproj",
        "the file of --mmproj belongs to another model",
        "take the mmproj file from the same repository as the model",
    ),
    Cause(
        "mmproj",
        "model",
        r"unknown (?:vision |audio )?projector type|unexpected (?:vision|audio) projector type"
        r"|This GGUF does not support multimodal|unsupported minicpmv version",
        "this build does not know the kind of the mmproj file",
        UPDATE_BUILD,
    ),
    Cause(
        "mmproj",
        "arguments",
        r"clip[^\n]*(?:Key not found: |unable to find tensor |missing key)[^\n]*",
        "the file of --mmproj is not an mmproj file, or from another version",
        "take the mmproj file from the same repository as the model",
    ),
    Cause(
        "mmproj",
        "arguments",
        r"CLIP cannot be used as main model",
        "the file of -m is an mmproj file, not a model",
        "give the model with -m, and this file with --mmproj",
    ),
    Cause(
        "lora",
        "arguments",
        r"maybe wrong base model|model arch and LoRA arch mismatch|lora tensor '[^\n]*"
        r"|expect(?:ed)? general\.type to be 'adapter'|not a LoRA adapter",
        "the LoRA adapter does not fit the model",
        "use the model for which it was made, and check the file given with --lora",
    ),
    Cause(
        "control-vector",
        "arguments",
        r"control vector n_embd does not match model|failed to load control vector file"
        r"|invalid \([^)]+\) direction tensor|control vectors in \S+ does not match",
        "the control vector does not fit the model, or cannot be read",
        "check the file given with --control-vector",
    ),
    # These only tell from which argument the file is. The cause is in the line before.
    *(
        Cause(
            "model-unusable",
            "model",
            pattern,
            f"the {what} cannot be used",
            "check the path given with {option}",
            rank=2,
            option=option,
        )
        for what, option, pattern in (
            ("draft model", "--model-draft", r"failed to load draft model"),
            (
                "mmproj file",
                "--mmproj",
                r"failed to load multimodal model|Failed to load CLIP model",
            ),
            ("LoRA adapter", "--lora", r"failed to (?:load|apply) lora adapter"),
        )
    ),
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
