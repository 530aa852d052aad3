# The image that images of environments start from when tests run on Docker: a small Debian with
# its python3, made here, so that no registry is needed. Source setup.sh first.
#
#   ensure_base_image    makes it unless the engine has it; sets BASE_IMAGE, or why, and fails
#
# The tree is kept as an archive, for another engine or an emptied one.

BASE_SUITE=bookworm
BASE_NAME=belljar-base:$BASE_SUITE

base_archive() {
    local place=/var/cache/belljar
    [ -w /var/cache ] || place=${XDG_CACHE_HOME:-$HOME/.cache}/belljar
    echo "$place/base-$BASE_SUITE-$(uname -m).tar"
}

# The mirror of this machine's own packages if it is a Debian of the same name.
base_mirror() {
    local mirror
    mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
        awk -v suite="$BASE_SUITE" '$2 == suite { print $1; exit }')
    echo "${mirror:-http://deb.debian.org/debian}"
}

make_base_archive() { # ARCHIVE
    local tree
    if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
        why="the base image is made by root with debootstrap (apt install debootstrap); or name one of yours with python3 in BELLJAR_DOCKER_BASE"
        return 1
    fi
    say "making the base image: Debian $BASE_SUITE with python3, once"
    mkdir -p "$(dirname "$1")"
    tree=$(mktemp -d "$(dirname "$1")/base.XXXXXX") || return 1
    if ! debootstrap --variant=minbase --include=python3 \
        "$BASE_SUITE" "$tree" "$(base_mirror)" >"$1.log" 2>&1; then
        tail -n 20 "$1.log" >&2
        rm -rf "$tree"
        why="debootstrap failed; its log is $1.log"
        return 1
    fi
    # Packages as they came, and what belongs to this machine, are of no use in it.
    rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/* "$tree"/var/log/*.log \
        "$tree"/etc/machine-id "$tree"/etc/resolv.conf "$tree"/etc/hostname
    tar -C "$tree" --numeric-owner --one-file-system -cf "$1.new" . && mv "$1.new" "$1"
    rm -rf "$tree"
}

ensure_base_image() {
    BASE_IMAGE=$BASE_NAME
    command -v docker >/dev/null || {
        why="there is no docker client to make the base image with"
        return 1
    }
    docker image inspect "$BASE_NAME" >/dev/null 2>&1 && return
    local archive
    archive=$(base_archive)
    [ -e "$archive" ] || make_base_archive "$archive" || return 1
    docker import "$archive" "$BASE_NAME" >/dev/null || {
        why="the engine did not take $archive"
        return 1
    }
}
