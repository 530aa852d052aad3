# An ordinary user to run tests as, with an interpreter and a copy of the project. For root.
# Source setup.sh first; `work` is a directory for it, `build_data PYTHON` is the caller's.
#
#   prepare_user     makes it, unless that was done; sets home, and why if it fails
#   as_user ...      runs a command as it
#   remove_user      with all its processes; does nothing without such a user

user=belljar-test-$$ home="" uid="" gid=""

as_user() { # in a clean environment, but with the settings of package indexes and of the tests
    local keep=() name
    while IFS= read -r name; do
        case "$name" in
            PIP_* | UV_* | SSL_CERT_* | *_CA_BUNDLE | *_proxy | *_PROXY) keep+=("$name=${!name}") ;;
            BELLJAR_TEST_* | HYPOTHESIS_* | CI | TERM | COLUMNS | LANG | LC_* | *_COLOR)
                keep+=("$name=${!name}") ;;
        esac
    done < <(compgen -e)
    setpriv --reuid "$uid" --regid "$gid" --clear-groups env -i "${keep[@]}" \
        HOME="$home" USER="$user" LOGNAME="$user" BELLJAR_CACHE="$home/cache" TMPDIR="$home/tmp" \
        PATH="$home/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" "$@"
}

make_user() {
    command -v useradd >/dev/null && command -v setpriv >/dev/null || {
        why="this machine has no useradd or no setpriv"
        return 1
    }
    home=$work/user
    id "$user" >/dev/null 2>&1 ||
        useradd --system --no-create-home --home-dir "$home" --shell /bin/sh "$user" || {
        why="useradd could not make a user"
        return 1
    }
    uid=$(id -u "$user") gid=$(id -g "$user")
}

# An interpreter this user can execute: the one of .venv if it may, else one of the system's.
find_user_python() {
    local candidate
    for candidate in "$(readlink -f "$VENV/bin/python")" /usr/bin/python3 /usr/local/bin/python3; do
        if as_user "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
        then
            echo "$candidate"
            return
        fi
    done
    return 1
}

prepare_user() {
    make_user || return 1
    [ ! -e "$work/user.ready" ] || return 0
    mkdir -p "$home/source" "$home/tmp" "$home/cache"
    chmod 711 "$work"
    chown "$uid:$gid" "$home" "$home/tmp"
    local python
    python=$(find_user_python) || {
        why="an ordinary user can execute no Python of 3.11 or later here (install the system's python3)"
        return 1
    }
    say "native-user: preparing $("$python" -V) for $user"
    # A copy, because the user may not enter the directory of this one.
    tar -C "$ROOT" --exclude=./.venv --exclude=./.git --exclude=__pycache__ --exclude='./.*_cache' \
        --exclude=./.hypothesis -cf - . | tar -C "$home/source" -xf -
    "$python" -m venv --without-pip "$home/venv" &&
        install_project "$home/venv/bin/python" "$home/source" || {
        why="the installation for the user failed"
        return 1
    }
    # Settings of package indexes are wanted there too, and are in files only we can read.
    local settings
    for settings in pip/pip.conf uv/uv.toml; do
        if [ -r "${XDG_CONFIG_HOME:-$HOME/.config}/$settings" ]; then
            install -D "${XDG_CONFIG_HOME:-$HOME/.config}/$settings" "$home/.config/$settings"
        fi
    done
    # Built by us, who have the downloads already, and given away.
    BELLJAR_CACHE=$home/cache build_data "$home/venv/bin/python" || {
        why="its data environment could not be built"
        return 1
    }
    chown -R "$uid:$gid" "$home"
    touch "$work/user.ready"
}

remove_user() {
    local uid process
    uid=$(id -u "$user" 2>/dev/null) || return 0
    for process in /proc/[0-9]*; do # by uid: only this user has it
        if [ "$(stat -c %u "$process" 2>/dev/null)" = "$uid" ]; then
            kill -KILL "${process#/proc/}" 2>/dev/null || true
        fi
    done
    userdel "$user" 2>/dev/null || say "could not remove the user $user"
}
