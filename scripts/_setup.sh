# Sourced by scripts/test and scripts/demo: prepares the checkout; needs only Python 3.11+.
#
#   find_wcf_client              # for the tests with Microsoft's client
#   setup_environment demo       # or: setup_environment dev demo
#
# creates a virtual environment in .venv with the project, editable, and these extras. If it is up to date, this takes no
# time. If pyproject.toml has changed or the checkout has moved, it is installed again.

# Modules are compiled when they are first imported, and many processes import the same ones: bytecode must be stored.
unset PYTHONDONTWRITEBYTECODE

say() { printf 'holdfast: %s\n' "$*" >&2; }

fail() {
    say "$1"
    shift
    local line
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    exit 1
}

# Finds the first interpreter that is new enough and can create a virtual environment; HOLDFAST_PYTHON overrides it.
# A command may exist but not run (such as a shim of a version manager), so try each.
find_python() {
    local candidate newest="" without_venv=""
    for candidate in ${HOLDFAST_PYTHON:+"$HOLDFAST_PYTHON"} python3 python3.13 python3.12 python3.11 python3.14 python; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || {
            newest=${newest:-$candidate}
            continue
        }
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            printf '%s' "$candidate"
            return 0
        fi
        without_venv=$candidate
    done
    if [ -n "$without_venv" ]; then
        fail "$without_venv is new enough, but cannot make a virtual environment (its venv or ensurepip module is missing)" \
            "On Debian or Ubuntu: apt-get install python3-venv" \
            "Or name another interpreter: HOLDFAST_PYTHON=/path/to/python3.12 $0"
    fi
    fail "Python 3.11 or newer is needed${newest:+; $newest is $("$newest" --version 2>&1 || true)}" \
        "On Debian 12, Ubuntu 23.04 or newer: apt-get install python3 python3-venv" \
        "Elsewhere: https://www.python.org/downloads/" \
        "Or name an interpreter: HOLDFAST_PYTHON=/path/to/python3.12 $0"
}

# Prints the inputs of an installation. They are stored next to it, and compared at every start.
installation_facts() {
    pwd -P
    cat pyproject.toml
}

# Scripts in an environment contain its path, so a moved or incomplete environment is created again.
environment_is_sound() {
    [ "$(cat .venv/made-in 2>/dev/null)" = "$(pwd -P)" ] &&
        .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

is_installed() {
    local extra
    for extra in "$@"; do
        installation_facts | cmp -s - ".venv/installed-$extra" || return 1
    done
    .venv/bin/python -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("holdfast"))' >/dev/null 2>&1
}

# Runs a long command with its output in a log, and reports its progress every few seconds.
run_with_progress() {
    local what=$1 log=$2 pid started=$SECONDS ticks=0
    shift 2
    "$@" >"$log" 2>&1 &
    pid=$!
    trap 'kill "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; exit 130' INT TERM
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        ticks=$((ticks + 1))
        [ $((ticks % 10)) -ne 0 ] || say "$what, $((SECONDS - started)) s: $(tail -n 1 "$log" | cut -c 1-100)"
    done
    trap - INT TERM
    wait "$pid"
}

# Exports WCF_CLIENT, the path of the WCF client program, which no package contains: the variable's value, or a program
# called wcfclient in a directory next to the checkout; otherwise empty.
find_wcf_client() {
    if [ -z "${WCF_CLIENT:-}" ]; then
        WCF_CLIENT=$(find -L .. -mindepth 1 -maxdepth 4 -name '.*' -prune -o \
            -type f -name wcfclient -perm -u+x -print -quit 2>/dev/null || true)
        WCF_CLIENT=${WCF_CLIENT:+$(realpath "$WCF_CLIENT")}
    fi
    export WCF_CLIENT
}

setup_environment() {
    if is_installed "$@"; then return 0; fi
    if command -v flock >/dev/null 2>&1; then # of two concurrent first runs, the second waits
        exec 9>.venv.lock
        flock 9
        if is_installed "$@"; then
            exec 9>&-
            return 0
        fi
    fi
    local extra extras python log=.venv/install.log
    if ! environment_is_sound; then
        python=$(find_python) || exit 1
        say "making a virtual environment in .venv with $("$python" --version 2>&1)"
        "$python" -m venv --clear .venv || fail "no virtual environment could be made in $PWD/.venv" "The lines above say why."
        pwd -P >.venv/made-in
    fi
    extras=$(IFS=,; printf '%s' "$*")
    say "installing holdfast[$extras] into .venv; the first time takes minutes: Spark alone is an archive of 450 MB"
    for extra in "$@"; do rm -f ".venv/installed-$extra"; done
    # To compile all modules of all packages would take a third of the time; few are ever imported.
    run_with_progress installing "$log" .venv/bin/python -m pip install --no-compile --disable-pip-version-check --progress-bar off --editable ".[$extras]" || {
        tail -n 25 "$log" >&2
        fail "the installation failed; the lines above are the end of $log" "Once that is mended, run $0 again: it goes on where it stopped."
    }
    for extra in "$@"; do installation_facts >".venv/installed-$extra"; done
    say "set up; the next start is immediate"
    exec 9>&-
}
