# shellcheck shell=bash
# Runs in the sandbox around each command of a Shell: loads and saves the state of the bash.
#
# Every command gets a new bash, which first reads what the one before has saved, and saves its own
# state at the end: so variables last, and a command that is killed leaves them as they were. The
# command comes in a variable, and never becomes a part of this text.
#
# Nothing here starts another program, except mkdir at the very first time, and a reader if the
# command leaves something running in the background: its output goes to a pipe that the sandbox
# does not read after the command has ended, and without a reader the next line would kill it.
#
# The state is a script. Functions come before aliases, which would change what they say, and
# options come last, as some change how the rest is read.
__bj_begin() {
    builtin unset -v __bj_functions
    builtin export -n "${!__bj_@}"
    __bj_last=0 __bj_trace= __bj_set= __bj_fresh=1
    [[ -d $__bj_dir ]] || mkdir -p -m 700 -- "$__bj_dir"
    __bj_trap='{ __bj_end "$?"; } 2>/dev/null; __bj_leave'
    builtin trap "$__bj_trap" EXIT
    if [[ -n $__bj_load && -r $__bj_load ]]; then
        __bj_fresh=0
        local __bj_names __bj_name
        builtin compgen -e >| "$__bj_dir/names"
        builtin mapfile -t __bj_names < "$__bj_dir/names"
        for __bj_name in "${__bj_names[@]}"; do  # what it is given, and may have unset since
            __bj_own "$__bj_name" || builtin unset -v -- "$__bj_name"
        done
    else
        __bj_load=
        builtin shopt -s expand_aliases  # as in a terminal
        builtin cd -- "$__bj_start" || builtin exit 1
    fi
}

# $? is that of the command before.
__bj_ready() {
    [[ -z $__bj_set ]] || builtin eval "$__bj_set"
    return "$__bj_last"
}

# Names that belong to bash, or to this driver.
__bj_own() {
    case $1 in
        __bj_* | BASH | BASH_* | BASHOPTS | BASHPID | COMP_* | COMPREPLY | DIRSTACK | EPOCH*) ;;
        EUID | FUNCNAME | FUNCNEST | GROUPS | HISTCMD | HOSTTYPE | LINENO | MACHTYPE | OSTYPE) ;;
        PIPESTATUS | PPID | PWD | RANDOM | SECONDS | SHELLOPTS | SHLVL | SRANDOM | UID | _) ;;
        *) return 1 ;;
    esac
}

__bj_end() {
    builtin set +o >| "$__bj_save.set"
    builtin set +euxvf +o noclobber +o posix
    builtin trap -p >| "$__bj_save.trap"
    builtin trap - EXIT DEBUG ERR RETURN
    local __bj_ifs=${IFS-unset}
    local IFS=$' \t\n'
    __bj_status=$1 __bj_saved=0 __bj_held=0
    __bj_write "$@" >| "$__bj_save" && __bj_saved=1
}

# With the streams as they are for the command. The report comes last of all: who finds it knows
# that the rest is whole.
__bj_leave() {
    local __bj_process
    for __bj_process in /proc/[0-9]*; do
        [[ $__bj_process != /proc/$$ ]] || continue
        if [[ $__bj_process/fd/1 -ef /proc/$$/fd/1 || $__bj_process/fd/1 -ef /proc/$$/fd/2 ||
            $__bj_process/fd/2 -ef /proc/$$/fd/1 || $__bj_process/fd/2 -ef /proc/$$/fd/2 ]]; then
            __bj_held=1
            __bj_hold
            break
        fi
    done
    builtin printf '%s %s %s %s %s\n' "$__bj_run" "$__bj_saved" "$__bj_fresh" "$__bj_held" "$PWD" \
        >| "$__bj_dir/report"
    builtin exit "$__bj_status"
}

# Both pipes are opened for reading while the sandbox still reads them, and read only when it has
# said that it has all of what the command itself wrote.
__bj_hold() {
    [[ -p /proc/$$/fd/1 && -p /proc/$$/fd/2 ]] || return
    {
        (
            until [[ -e $__bj_dir/go$__bj_run || ! -d $__bj_dir ]]; do sleep 0.02; done
            rm -f -- "$__bj_dir/go$__bj_run"
            cat <&8 &
            exec cat <&9
        ) >/dev/null 2>&1 &
    } 8</proc/$$/fd/1 9</proc/$$/fd/2
}

__bj_write() {
    local __bj_at
    local __bj_name __bj_line __bj_names __bj_kept=()
    builtin shift
    builtin shopt -p extglob
    builtin printf 'builtin cd -- %q || builtin cd -- %q\n' "$PWD" "$__bj_start"
    for ((__bj_at = ${#DIRSTACK[@]} - 1; __bj_at > 0; __bj_at--)); do
        builtin printf 'builtin pushd -n -- %q >/dev/null\n' "${DIRSTACK[__bj_at]/#\~/$HOME}"
    done
    builtin umask -p
    builtin compgen -A variable >| "$__bj_dir/names"
    builtin mapfile -t __bj_names < "$__bj_dir/names"
    for __bj_name in "${__bj_names[@]}"; do
        [[ $__bj_name == IFS ]] || __bj_own "$__bj_name" || __bj_kept+=("$__bj_name")
    done
    (( ${#__bj_kept[@]} == 0 )) || builtin declare -p -- "${__bj_kept[@]}"
    __bj_functions
    builtin alias -p
    __bj_traps
    builtin printf 'builtin set --'
    (( $# == 0 )) || builtin printf ' %q' "$@"
    builtin printf '\n'
    builtin shopt -p >| "$__bj_dir/names"
    builtin mapfile -t __bj_names < "$__bj_dir/names"
    for __bj_line in "${__bj_names[@]}"; do
        case $__bj_line in
            *' restricted_shell' | *' login_shell') ;;  # these cannot be set
            *) builtin printf '%s\n' "$__bj_line" ;;
        esac
    done
    __bj_sets
    [[ $__bj_ifs == unset ]] || builtin printf 'IFS=%q\n' "$__bj_ifs"
    builtin printf '__bj_last=%s\n' "$__bj_status"
}

__bj_functions() {
    local __bj_name __bj_line __bj_names __bj_kept=()
    builtin compgen -A function >| "$__bj_dir/names"
    builtin mapfile -t __bj_names < "$__bj_dir/names"
    for __bj_name in "${__bj_names[@]}"; do
        [[ $__bj_name == __bj_* ]] || __bj_kept+=("$__bj_name")
    done
    (( ${#__bj_kept[@]} == 0 )) && return
    builtin declare -f -- "${__bj_kept[@]}"
    builtin declare -F >| "$__bj_dir/names"
    builtin mapfile -t __bj_names < "$__bj_dir/names"
    for __bj_line in "${__bj_names[@]}"; do
        [[ $__bj_line != 'declare -fx '* ]] || builtin printf '%s\n' "$__bj_line"
    done
}

# Leaves out the trap of this driver, which is set for each command.
__bj_traps() {
    local __bj_text
    IFS= builtin read -r -d '' __bj_text < "$__bj_save.trap"
    builtin printf '%s\n' "${__bj_text//"trap -- '$__bj_trap' EXIT"/}"
}

# Tracing must not show what is between here and the command; the options that end a shell or keep
# it from running anything are not for the next one.
__bj_sets() {
    local __bj_line __bj_names __bj_text=
    builtin mapfile -t __bj_names < "$__bj_save.set"
    for __bj_line in "${__bj_names[@]}"; do
        case $__bj_line in
            *' noexec' | *' onecmd' | *' xtrace' | *' verbose') ;;
            *) __bj_text+=$__bj_line$'\n' ;;
        esac
        [[ $__bj_line != 'set -o xtrace' ]] || builtin printf '__bj_trace="set -x; "\n'
    done
    builtin printf '__bj_set=%q\n' "$__bj_text"
}
