"""The causes that lie in the arguments of the server, or in a file that an argument names.

Each row comes from upstream's sources or a report. ``tests/last_words.txt`` has at least one text
with its source for each row.
"""

from __future__ import annotations

from tsuku_llm.launch.failed.causes import CPU_OVERRIDE, UPDATE_BUILD, Cause

_HELP = "see the arguments of this build: tsuku-llm serve -- --help"

# On one line the first row that matches counts, so narrower rows come first.
ARGUMENTS = (
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
)
