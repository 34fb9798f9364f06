#!/usr/bin/env bash
# Builds a kernel with KASAN, lockdep and kmemleak from Debian's package linux-source-6.1, and caches its tree. The last line
# of the output is the directory of the tree, as guest-module/test/make-disk.sh takes it:
#
#   /var/cache/heddle/debug-kernels/6.1.192-2-KEY
#
# KEY is a digest of guest-module/test/debug.config: a second run has nothing to do. HEDDLE_DEBUG_KERNELS names another
# directory. Needs no root if that directory can be written to.
set -euo pipefail
readonly self=$(readlink -f "${BASH_SOURCE[0]}")
cd "$(dirname "$self")/.."
export LC_ALL=C KBUILD_BUILD_USER=heddle KBUILD_BUILD_HOST=heddle

readonly kernels=${HEDDLE_DEBUG_KERNELS:-/var/cache/heddle/debug-kernels}
readonly archive=/usr/src/linux-source-6.1.tar.xz
readonly config=$PWD/guest-module/test/debug.config
readonly free_mib_needed=4096

say() {
    printf 'debug-kernel: %s\n' "$*"
}

fail() {
    printf 'debug-kernel: %s\n' "$@" >&2
    exit 1
}

check_config() { # .config: every setting of debug.config has to be in force
    local missing
    missing=$(grep -v '^#' "$config" | grep -v '=n$' | grep -vxFf "$1" || true)
    [[ -z $missing ]] || fail "the kernel's configuration drops these settings of debug.config:" "$missing"
    missing=$(sed -n 's/^\(CONFIG_.*\)=n$/\1=/p' "$config" | grep -Ff - "$1" || true)
    [[ -z $missing ]] || fail "the kernel's configuration sets what debug.config excludes:" "$missing"
}

unpack_and_configure() {
    local free
    free=$(df --output=avail --block-size=1M "$kernels" | tail -n 1 | tr -d ' ')
    ((free >= free_mib_needed)) || fail "the build needs $free_mib_needed MiB, but $kernels has only $free MiB free."
    say "unpacking the source of kernel $version"
    rm -rf "$target"
    mkdir "$target"
    # Without what no build for x86 reads.
    tar --extract --file "$archive" --directory "$target" --strip-components 1 \
        --exclude '*/Documentation/*/*' --exclude '*/drivers/gpu/drm/*/*.[ch]' --exclude '*/tools/testing/*'
    {
        make -C "$target" tinyconfig
        (cd "$target" && scripts/kconfig/merge_config.sh -m .config "$config")
        make -C "$target" olddefconfig
    } >"$log" 2>&1 || { tail -n 30 "$log" >&2; fail "configuring the kernel failed: $log"; }
    check_config "$target/.config"
    touch "$target/.heddle-configured"
}

[[ -e $archive ]] || fail "$archive is missing." "Run as root: apt-get install linux-source-6.1"
version=$(dpkg-query -W -f '${Version}' linux-source-6.1)
key=$(sha256sum <"$config" | cut -c -12)
target=$kernels/$version-$key
if [[ ! -e $target/.heddle-complete ]]; then
    mkdir -p "$kernels"
    exec 9>"$kernels/.lock"
    flock --nonblock 9 || { say "waiting for another build of a debug kernel"; flock 9; }
fi
if [[ ! -e $target/.heddle-complete ]]; then
    log=$target/.heddle-build.log
    # What a killed build has compiled is used.
    [[ -e $target/.heddle-configured ]] || unpack_and_configure
    say "building it (takes 10 minutes or more, only once); log: $log"
    began=$SECONDS
    TIMEFORMAT='%U %S'
    times=$({ time make -C "$target" -j"$(nproc)" bzImage modules >>"$log" 2>&1; } 2>&1) ||
        { tail -n 30 "$log" >&2; fail "building the kernel failed: $log"; }
    say "built in $((SECONDS - began)) s, with $(awk '{ printf "%.0f", $1 + $2 }' <<<"$times") s of processor time"
    touch "$target/.heddle-complete"
fi
echo "$target"
