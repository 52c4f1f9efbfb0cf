#!/bin/sh
# A bundle of tsuku-llm: the program, signed metadata and builds, for machines without a network.
# To install from it: sh FILE   To see the options: sh FILE --help   What is in it: unzip -l FILE
size=@SIZE@
sha256=@SHA256@
# No program, library or module of the current folder: other users may be able to write there.
absolute() {
    given='' kept='' IFS=$2 && set -f
    eval "given=\${$1-}"
    for each in $given; do
        case $each in /*) kept=$kept:$each ;; esac
    done
    unset IFS "$1" && set +f
    [ -z "$kept" ] || export "$1=${kept#:}"
}
absolute PATH :
absolute LD_LIBRARY_PATH ':;'
absolute LD_PRELOAD ': '
absolute LD_AUDIT :
python=${PYTHON:-python3}
if [ "$(wc -c <"$0" | tr -d ' ')" != "$size" ]; then
    echo "error[bad-bundle]: $0 is not whole: it should have $size bytes" >&2
    echo "  hint: copy it again, and compare its SHA-256 with what its maker says" >&2
    exit 5
fi
if ! "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "error[wrong-bundle]: the program needs Python 3.10 or newer, and $python is not" >&2
    echo "  hint: install python3, or name another one: PYTHON=/path/to/python3 sh $0" >&2
    exit 3
fi
exec "$python" -I -c '
import hashlib, sys, zipfile
_, head, wanted, *sys.argv = sys.argv
with open(sys.argv[0], "rb") as file:
    file.seek(int(head))
    found = hashlib.sha256()
    for chunk in iter(lambda: file.read(1 << 20), b""):
        found.update(chunk)
    if found.hexdigest() != wanted:
        print("error[bad-bundle]: %s is damaged" % sys.argv[0], file=sys.stderr)
        print("  hint: copy it again, and compare its SHA-256 with its maker", file=sys.stderr)
        sys.exit(5)
    code = zipfile.ZipFile(file).read("start.py")
exec(compile(code, "start.py", "exec"), {"__name__": "__main__"})
' @HEAD@ "$sha256" "$0" "$@"
