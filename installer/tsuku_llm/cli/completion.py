"""Completion in a shell: the script that a shell loads, and the answers to that script.

At each TAB the script runs this program, with the command line up to the cursor in a variable. The
answer is ``files`` (the shell completes names of files itself), or ``words`` and a line for each.

Names of models, servers and versions are data, and a shell runs what it reads. Who quotes:

- bash inserts an answer as it is, so this program quotes it, for the quotes that are open there;
- zsh and fish quote what they insert; fish leaves a tilde that begins a word alone, so such a name
  is not offered there;
- the script for PowerShell quotes with PowerShell's own function, since that also knows the
  typographic quotation marks.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import redirect_stderr, suppress
from io import StringIO

import click
from click.shell_completion import ShellComplete

from tsuku_llm.cli.program import program
from tsuku_llm.cli.table import COMPLETE
from tsuku_llm.ground.own_name import PROGRAM
from tsuku_llm.ground.safe_text import printable

LINE = "_TSUKU_LLM_LINE"
"""The variable with the command line up to the cursor."""

REPLACED = "_TSUKU_LLM_REPLACED"
"""The variable with the end of that line, which bash replaces by an answer."""

# In all of them: no answer is ever evaluated, split or matched against the names of files.

# A here-string, since bash without the rights for a process substitution has none. "nosort" is new
# in 4.4. A folder is no end of a word: its files follow.
_BASH = """\
_tsuku_llm_completion() {
    local answer
    mapfile -t answer <<< "$(%(complete)s=bash %(line)s="${COMP_LINE:0:COMP_POINT}" \
%(replaced)s="$2" "$1" 2>/dev/null)"
    COMPREPLY=("${answer[@]:1}")
    if [[ ${answer[0]} == files ]]; then
        compopt -o default
    elif [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */?([\\"\\']) ]]; then
        compopt -o nospace
    fi
}

complete -o nosort -F _tsuku_llm_completion %(program)s
"""

# -U: the words of the line have quotes, and zsh would compare them with the answers.
_ZSH = """\
#compdef %(program)s

_tsuku_llm_completion() {
    local -a answer found
    (( $+commands[%(program)s] )) || return 1
    answer=("${(@f)$(%(complete)s=zsh %(line)s="${words[1,CURRENT]}" %(program)s 2>/dev/null)}")
    if [[ $answer[1] == files ]]; then
        _path_files -f
    elif (( $#answer > 1 )); then
        found=("${(@)answer[2,-1]}")
        _describe -V unsorted found -U
    fi
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _tsuku_llm_completion "$@"
else
    compdef _tsuku_llm_completion %(program)s
fi
"""

_FISH = """\
function _tsuku_llm_completion
    set -l answer (env %(complete)s=fish %(line)s=(commandline -cp | string collect) \
%(program)s 2>/dev/null)
    if test "$answer[1]" = files
        __fish_complete_path (commandline -ct)
    else
        string join -- \\n $answer[2..]
    end
end

complete --no-files --command %(program)s --arguments "(_tsuku_llm_completion)"
"""

# Windows PowerShell reads a program's output in the console's encoding, and this program writes
# UTF-8. A word with a dash first and a dot in it would become two arguments.
_POWERSHELL = """\
Register-ArgumentCompleter -Native -CommandName %(program)s -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $length = $cursorPosition - $commandAst.Extent.StartOffset
    $encoding = [Console]::OutputEncoding
    try {
        [Console]::OutputEncoding = New-Object System.Text.UTF8Encoding $false
        $env:%(complete)s = 'powershell'
        $env:%(line)s = $commandAst.Extent.Text.PadRight($length).Substring(0, $length)
        $kind, $answers = @(%(program)s 2>$null)
    } finally {
        [Console]::OutputEncoding = $encoding
        $env:%(complete)s = $null
        $env:%(line)s = $null
    }
    if ($kind -ceq 'files') {
        $files = [System.Management.Automation.CompletionCompleters]
        return $files::CompleteFilename($wordToComplete)
    }
    foreach ($answer in $answers) {
        $word, $meaning = $answer -split "`t", 2
        if (-not $meaning) { $meaning = $word }
        $quoted = $word
        if ($word -cnotmatch '^(-*[A-Za-z0-9_=-]+|[A-Za-z0-9_./\\\\][A-Za-z0-9_./\\\\:+-]*)\\z') {
            $code = [System.Management.Automation.Language.CodeGeneration]
            $quoted = "'" + $code::EscapeSingleQuotedStringContent($word) + "'"
        }
        [System.Management.Automation.CompletionResult]::new(
            $quoted, $word, 'ParameterValue', $meaning)
    }
}
"""

ZSH_SPECIAL = r"[\\:]"
"""What ends a word in an answer to zsh."""

BACKSLASHED = r"\\\g<0>"

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH, "powershell": _POWERSHELL}


def script(shell: str) -> str:
    """Return the script that a shell loads."""
    names = {"complete": COMPLETE, "line": LINE, "replaced": REPLACED, "program": PROGRAM}
    return _SCRIPTS[shell] % names


def answer(shell: str) -> None:
    """Print the completions for a shell's script; print nothing after any error.

    A message would appear in the middle of what the user types.
    """
    with redirect_stderr(StringIO()), suppress(Exception):
        # Bytes: on Windows a text would get another line end than the script expects.
        click.echo("\n".join(_found(shell)).encode())


def _found(shell: str) -> list[str]:
    line = os.environ[LINE]
    (_, *words, typed), _ = split_line(line, shell)
    found = ShellComplete(program, {}, PROGRAM, COMPLETE).get_completions(list(words), typed)
    if any(each.type == "file" for each in found):
        return ["files"]
    # click gives the values of "--backend=cu" alone; a shell completes the whole word.
    option, equals, _ = typed.partition("=")
    before = f"{option}=" if equals and option.startswith("-") and "--" not in words else ""
    answers = [(f"{before}{each.value}", printable(each.help or "")) for each in found]
    if shell == "bash":
        # bash replaces only what follows a colon, an equals sign or an open quotation mark.
        kept, quote = split_line(line.removesuffix(os.environ[REPLACED]), shell)
        told = [_for_bash(word.removeprefix(kept[-1]), quote) for word, _ in answers]
    elif shell == "zsh":
        told = [f"{re.sub(ZSH_SPECIAL, BACKSLASHED, word)}:{text}" for word, text in answers]
    else:
        # fish quotes all but a tilde at the beginning, which it would expand.
        told = [
            f"{word}\t{text}"
            for word, text in answers
            if not (shell == "fish" and word.startswith("~"))
        ]
    return ["words", *told]


def split_line(line: str, shell: str) -> tuple[list[str], str]:
    """Split a line into its words without quotes; also return the quotation mark that is open.

    The last word is the one at the cursor. Nothing is expanded: a word such as ``$HOME/x`` or
    ``$(x)`` means its own characters.
    """
    escape = "`" if shell == "powershell" else "\\"
    words, quote, at, is_word = [""], "", 0, False
    while at < len(line):
        char, after = line[at], line[at + 1 : at + 2]
        at += 1
        if char.isspace() and not quote:
            if is_word:
                words.append("")
            is_word = False
            continue
        is_word = True
        # A quotation mark within its own quotes: fish escapes it, PowerShell writes it twice.
        is_escape = char == escape and (
            quote != "'" or (shell == "fish" and after in ("'", escape))
        )
        is_doubled = shell == "powershell" and quote == char == after
        if is_doubled or (is_escape and (quote != '"' or after in '$`"\\' or escape == "`")):
            words[-1] += after
            at += 1
        elif quote == char:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            words[-1] += char
    return words, quote


def _for_bash(text: str, quote: str) -> str:
    """Quote what bash is to insert behind an open ``quote``, or behind none.

    The answer has the opening quotation mark as well, which bash does not insert twice, and the
    closing one: bash adds it to an answer that does not end with it.
    """
    if quote == '"':
        # History expansion works within double quotes, too; a backslash there would stay.
        return re.sub(r'[\\"$`]', BACKSLASHED, text).replace("!", "\"'!'\"").join('""')
    if quote == "'":
        return text.replace("'", "'\\''").join("''")
    return shlex.quote(text) if text else ""
